"""``zero_optimization`` (deepspeed/runtime/zero/config.py, offload_config.py, leaf_module_config.py, zenflow_config.py).

All of it is pydantic. Which keys do something at which stage is a matter of ``glmexp.dsconfig.rules``.
"""

import sys

from glmexp.dsconfig.table.shape import Removed, Section, choice, flag, listing, number, text, whole

OFFLOAD_OPTIMIZER = Section(
    null=True,
    keys={
        "device": choice("none", "none", "cpu", "nvme"),
        "nvme_path": text(),
        "buffer_count": whole(4, least=0),
        "pin_memory": flag(True),
        "pipeline_read": flag(),
        "pipeline_write": flag(),
        "fast_init": flag(),
        "ratio": number(1.0, least=0, most=1),
        "super_offload": flag(),
        "cpuadam_cores_perc": number(0.8, least=0, most=1),
    },
)

OFFLOAD_PARAM = Section(
    null=True,
    keys={
        "device": choice("none", "none", "cpu", "nvme"),
        "nvme_path": text(),
        "buffer_count": whole(5, least=0),
        "buffer_size": whole(100_000_000, least=0),
        "max_in_cpu": whole(1_000_000_000, least=0),
        "pin_memory": flag(True),
    },
)

ZENFLOW = Section(
    null=True,
    keys={
        "topk_ratio": number(0.1, above=0, below=1),
        "select_strategy": choice("auto", "auto", "step", "epoch"),
        "select_interval": whole(None, null=False, words=("auto",)),
        "update_interval": whole(None, null=False, words=("auto",), least=1),
        "overlap_step": flag(),
        "offload": flag(),
        "auto_ratio": number(0.99, least=0, most=1),
        "full_warm_up_rounds": whole(0),
        "pt_reserved_cores_perc": number(0.5, least=0, most=1),
        "steps_per_epoch": whole(None),
    },
)

LEAF_MODULE = Section(
    null=True,
    keys={
        "classes": listing([], items="text", single=True),
        "names": listing([], items="text", single=True),
        "name_suffixes": listing([], items="text", single=True),
    },
)

_MICS = "MiCS has no successor; zero_hpz_partition_size keeps a second copy of the parameters inside a node"

ZERO = Section(
    keys={
        "stage": whole(0, least=0, most=3),
        "contiguous_gradients": flag(True),
        "reduce_scatter": flag(True),
        "reduce_bucket_size": whole(500_000_000, above=0),
        "use_multi_rank_bucket_allreduce": flag(True),
        "allgather_partitions": flag(True, unused="the updated parameters are always gathered in one collective"),
        "allgather_bucket_size": whole(
            500_000_000,
            least=0,
            unused="the updated parameters are gathered whole, not in buckets",
        ),
        "overlap_comm": flag(None),
        "compute_grad_norm": flag(True),
        "load_from_fp32_weights": flag(True),
        "elastic_checkpoint": flag(),
        "offload_param": OFFLOAD_PARAM,
        "offload_optimizer": OFFLOAD_OPTIMIZER,
        "zenflow": ZENFLOW,
        "sub_group_size": whole(1_000_000_000, least=0),
        "stage3_prefetch_bucket_size": whole(50_000_000, least=0, alias="prefetch_bucket_size"),
        "stage3_param_persistence_threshold": whole(100_000, least=0, alias="param_persistence_threshold"),
        "stage3_model_persistence_threshold": whole(sys.maxsize, least=0, alias="model_persistence_threshold"),
        "stage3_max_live_parameters": whole(1_000_000_000, least=0, alias="max_live_parameters"),
        "stage3_max_reuse_distance": whole(1_000_000_000, least=0, alias="max_reuse_distance"),
        "stage3_gather_16bit_weights_on_model_save": flag(alias="gather_16bit_weights_on_model_save"),
        "stage3_module_granularity_threshold": whole(0, alias="module_granularity_threshold"),
        "stage3_use_all_reduce_for_fetch_params": flag(alias="use_all_reduce_for_fetch_params"),
        "stage3_allgather_sequential": flag(alias="allgather_sequential"),
        "ignore_unused_parameters": flag(True),
        "legacy_stage1": flag(),
        "round_robin_gradients": flag(),
        "parameter_alignment": flag(),
        "zero_hpz_partition_size": whole(1, least=0),
        "zero_quantized_weights": flag(),
        "zero_quantized_nontrainable_weights": flag(),
        "zero_quantized_gradients": flag(),
        "memory_efficient_linear": flag(True),
        "pipeline_loading_checkpoint": flag(),
        "override_module_apply": flag(True),
        "log_trace_cache_warnings": flag(),
        "enable_sanity_checks": flag(),
        "save_muon_momentum_buffer_in_memory": flag(),
        "leaf_module": LEAF_MODULE,
    },
    removed={
        "cpu_offload": Removed('write "offload_optimizer": {"device": "cpu"}', works=True),
        "cpu_offload_param": Removed('write "offload_param": {"device": "cpu"}', works=True),
        "cpu_offload_use_pin_memory": Removed("nothing reads it; write pin_memory inside offload_optimizer and offload_param"),
        "cpu_offload_params": Removed('write "offload_param": {"device": "cpu"}', "0.7.0"),
        "stage3_gather_fp16_weights_on_model_save": Removed("write stage3_gather_16bit_weights_on_model_save", works=True),
        "find_unused_parameters": Removed("write ignore_unused_parameters, which means the opposite", "0.4.0"),
        "mics_shard_size": Removed(_MICS, "0.19.7"),
        "mics_hierarchical_params_gather": Removed(_MICS, "0.19.7"),
        "zeropp_loco_param": Removed("leave it out: quantised gradients work without error feedback now", "0.19.8"),
    },
)
