"""Sections that change how the model itself runs: compilation, tensor and expert parallelism, generation, pipelines.

deepspeed/compile/config.py, runtime/tensor_parallel/config.py, module_inject/autotp_config.py, module_inject/auto_ep_config.py,
runtime/config.py (HybridEngineConfig, get_pipeline_config), inference/config.py (WeightQuantConfig).
"""

from glmexp.dsconfig.table.shape import Removed, Section, anything, choice, flag, listing, mapping, number, text, whole

_ENGINE_COMPILE = Removed("the program calls engine.compile() instead, which takes backend and compile_kwargs", "0.14.4")

COMPILE = Section(
    removed=dict.fromkeys(("enabled", "backend", "kwargs"), _ENGINE_COMPILE),
    keys={
        "deepcompile": flag(),
        "autoep_non_moe": flag(),
        "free_activation": flag(),
        "free_activation_threshold": whole(10 * 1024 * 1024),
        "offload_activation": flag(),
        "offload_activation_pin_memory": flag(True),
        "offload_opt_states": flag(),
        "double_buffer": flag(True),
        "symmetric_memory": flag(),
        "debug_log": flag(),
        "offload_parameters": flag(),
        "sync_before_reduce": flag(),
        "sync_after_reduce": flag(),
        "sync_before_allgather": flag(),
        "sync_after_allgather": flag(),
        "keep_int_input_tensors": flag(True),
        "keep_all_input_tensors": flag(),
        "passes": listing(None, choices=("z1", "z3", "autosp", "autotp")),
    },
)

TENSOR_PARALLEL = Section(
    keys={
        "autotp_size": whole(0),
        "tp_overlap_comm": flag(),
        "vocab_parallel_lm_head": flag(None),
        "vocab_parallel_ce_backend": choice("torch", "torch", "liger"),
        "tp": Section(
            alias="tensor_parallel",
            keys={
                "tp_size": whole(1),
                "tp_grain_size": whole(1),
            },
        ),
        "injection_policy_tuple": listing(None, unused="the engine overwrites it"),
        "partition_config": Section(
            checked=False,
            null=True,
            keys={
                "layer_specs": listing([], items="mapping", null=False),
                "tp_size": whole(1, unused="autotp_size is put in its place"),
                "embedding_partition_dim": whole(1),
                "lm_head_patterns": listing(["lm_head", "embed_out"], items="text", null=False),
                "use_default_specs": flag(True),
                "strict_mode": flag(),
            },
        ),
        "preset_model": text(),
        "keep_module_on_host": flag(),
        "kernel_inject": flag(alias="replace_with_kernel_inject"),
    }
)

EXPERT_PARALLEL = Section(
    checked=False,
    null=True,
    keys={
        "enabled": flag(),
        "autoep_size": whole(1, least=1),
        "expert_tensor_parallel_size": whole(1, least=1),
        "validate_folding_routing": flag(),
        "async_split_plan": flag(),
        "preset_model": text(),
        "moe_layer_pattern": text(),
        "expert_pattern": text(),
        "router_pattern": text(),
        "use_grouped_mm": flag(True),
        "disable_triton_grouped_mm": flag(),
        "route_norm": flag(None),
        "route_scale": number(1.0),
        "score_apply": choice("auto", "auto", "pre", "post"),
        "combine_impl": choice("auto", "auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"),
        "row_weighting_impl": choice("auto", "auto", "eager", "fused"),
        "gate_up_impl": choice("separate", "separate", "fused"),
        "comm_backend": choice("comm", "comm", "deepep"),
        "comm_num_sm": whole(12, least=1),
        "comm_qp_margin": whole(4, least=0),
        "comm_max_tokens_per_rank": whole(0, least=0),
        "num_expert_groups": whole(None, least=1),
        "num_limited_groups": whole(None, least=1),
        "score_func": choice("auto", "auto", "softmax", "sigmoid"),
        "top_k": whole(None, null=False, words=("auto",)),
        "load_balance_coeff": choice(None),
        "routed_scaling_factor": number(None, null=False, words=("auto",)),
        "expert_w1": text(),
        "expert_w2": text(),
        "expert_w3": text(),
        "num_experts_attr": text(),
        "top_k_attr": text(),
        "has_shared_experts": flag(None),
        "shared_experts_pattern": text(),
        "shared_experts_gate_pattern": text(),
        "expert_activation": text(),
    },
)

HYBRID_ENGINE = Section(
    keys={
        "enabled": flag(),
        "max_out_tokens": whole(512, above=0),
        "inference_tp_size": whole(1),
        "release_inference_cache": flag(),
        "pin_parameters": flag(True),
        "tp_gather_partition_size": whole(8),
        "enable_cuda_graph": flag(),
    }
)

_MODULE = "PipelineModule takes it as an argument"

PIPELINE = Section(
    checked=False,
    keys={
        "stages": anything("auto", words=("auto",), unused=_MODULE),
        "partition": text("best", unused=_MODULE),
        "seed_layers": flag(unused=_MODULE),
        "activation_checkpoint_interval": whole(0, least=0),
        "pipe_partitioned": flag(True),
        "grad_partitioned": flag(True),
        "use_reentrant": flag(None),
    },
)

_QUANTIZER = "the two sub-sections hold what the quantiser reads"

WEIGHT_QUANTIZATION = Section(
    keys={
        "enabled": flag(True, unused=_QUANTIZER),
        "num_bits": whole(8, unused=_QUANTIZER),
        "q_type": choice("symmetric", "asymmetric", "symmetric", unused=_QUANTIZER),
        "q_groups": whole(1, unused=_QUANTIZER),
        "quantized_initialization": mapping({}, null=False),
        "post_init_quant": mapping({}, null=False),
    }
)
