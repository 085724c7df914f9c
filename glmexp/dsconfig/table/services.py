"""Sections around the training itself: checkpoints, asynchronous I/O, monitors, profilers, timers, data, autotuning.

deepspeed/runtime/model_checkpointing, runtime/swap_tensor/aio_config.py, monitor/config.py, comm/config.py, utils/config.py,
profiling/config.py, runtime/activation_checkpointing/config.py, runtime/data_pipeline/config.py, autotuning/config.py.
"""

from glmexp.dsconfig.table.shape import Removed, Section, choice, flag, listing, mapping, number, text, whole

CHECKPOINT = Section(
    checked=False,
    keys={
        "tag_validation": choice("Warn", folded=("warn", "ignore", "fail")),
        "load_universal": flag(),
        "use_node_local_storage": flag(),
        "parallel_write": Section(checked=False, keys={"pipeline_stage": flag()}),
        "checkpoint_serialization": flag(True),
        "writer": Section(
            checked=False,
            null=True,
            keys={
                "type": choice("FAST", folded=("mock", "python", "fast"), null=True),
                "io_buffer_size": whole(64 * 1024**2, above=0),
                "io_buffer_double": flag(True),
                "show_statistics": flag(),
                "data_parallel": choice(None, folded=("replica", "socket", "machine")),
                "decoupled": flag(),
                "io_multiplier": whole(1, above=0),
            },
        ),
    },
)

AIO = Section(
    checked=False,
    null=True,
    keys={
        "block_size": whole(1_048_576, above=0),
        "queue_depth": whole(8, above=0),
        "intra_op_parallelism": whole(1, above=0),
        "single_submit": flag(),
        "overlap_events": flag(True),
        "use_gds": flag(),
    },
    removed={"thread_count": Removed("write intra_op_parallelism", "0.16.4")},
)

_FILES = {"enabled": flag(), "output_path": text(""), "job_name": text("DeepSpeedJobName")}

TENSORBOARD = Section(keys=_FILES)
CSV_MONITOR = Section(keys=_FILES)
WANDB = Section(keys={"enabled": flag(), "group": text(), "team": text(), "project": text("deepspeed")})
COMET = Section(
    keys={
        "enabled": flag(),
        "samples_log_interval": whole(100),
        "project": text(),
        "workspace": text(),
        "api_key": text(),
        "experiment_name": text(),
        "experiment_key": text(),
        "online": flag(None),
        "mode": text(),
    }
)

COMMS_LOGGER = Section(
    keys={"enabled": flag(), "prof_all": flag(True), "prof_ops": listing([]), "verbose": flag(), "debug": flag()}
)

TIMERS = Section(checked=False, keys={"throughput": Section(keys={"enabled": flag(True), "synchronized": flag(True)})})

FLOPS_PROFILER = Section(
    checked=False,
    keys={
        "enabled": flag(),
        "recompute_fwd_factor": number(0.0),
        "profile_step": whole(1),
        "module_depth": whole(-1),
        "top_modules": whole(1),
        "detailed": flag(True),
        "output_file": text(),
    },
)

ACTIVATION_CHECKPOINTING = Section(
    checked=False,
    keys={
        "partition_activations": flag(),
        "number_checkpoints": whole(None),
        "contiguous_memory_optimization": flag(),
        "cpu_checkpointing": flag(),
        "synchronize_checkpoint_boundary": flag(),
        "profile": flag(),
    },
)

_CURRICULUM = Section(
    checked=False,
    keys={
        "enabled": flag(),
        "data_cluster_path": text(),
        "curriculum_metrics": mapping(),  # one section each metric, and the user names the metrics
    },
)

DATA_EFFICIENCY = Section(
    checked=False,
    keys={
        "enabled": flag(),
        "seed": whole(1234),
        "data_sampling": Section(
            checked=False,
            keys={
                "enabled": flag(),
                "num_epochs": whole(1000),
                "num_workers": whole(0, least=0),
                "pin_memory": flag(),
                "curriculum_learning": _CURRICULUM,
                "dynamic_batching": Section(
                    checked=False,
                    keys={
                        "enabled": flag(),
                        "metrics_path": text(),
                        "lr_scaling_method": choice("linear", "linear", "sqrt", "none"),
                        "min_batch_size": whole(1),
                        "max_batch_size": whole(None, null=False),
                        "sequence_picking_order": choice("dataloader", "random", "seqlen", "dataloader"),
                        "max_tokens": whole(None, null=False),
                        "verbose": flag(),
                    },
                ),
            },
        ),
        "data_routing": Section(
            checked=False,
            keys={
                "enabled": flag(unused="random_ltd.enabled alone decides"),
                "random_ltd": Section(
                    checked=False,
                    keys={
                        "enabled": flag(),
                        "total_layer_num": whole(None),
                        "random_ltd_layer_num": whole(None),
                        "random_ltd_layer_id": listing(),
                        "model_mask_name": text(),
                        "model_type": choice(None, "encoder", "decoder"),
                        "hidden_state_order": choice(None, "batch_seq_dim", "seq_batch_dim"),
                        "random_ltd_schedule": Section(
                            checked=False,
                            keys={
                                "min_value": whole(None),
                                "max_value": whole(None),
                                "schedule_type": text(),
                                "schedule_config": Section(
                                    checked=False,
                                    keys={
                                        "require_steps": whole(None),
                                        "seq_per_step": whole(None),
                                        "root_degree": number(None),
                                    },
                                ),
                            },
                        ),
                        "layer_token_lr_schedule": mapping(),
                    },
                ),
            },
        ),
    },
)

AUTOTUNING = Section(
    checked=False,
    keys={
        "enabled": flag(),
        "fast": flag(True),
        "results_dir": text("autotuning_results"),
        "exps_dir": text("autotuning_exps"),
        "overwrite": flag(True),
        "start_profile_step": whole(3),
        "end_profile_step": whole(5),
        "metric_path": text(),
        "metric": choice("throughput", "latency", "throughput", "flops", "forward", "step"),
        "tuner_type": choice("gridsearch", "gridsearch", "random", "model_based"),
        "tuner_early_stopping": whole(5),
        "tuner_num_trials": whole(50),
        "arg_mappings": mapping(),
        "model_info": Section(
            checked=False,
            null=True,
            keys={"profile": flag(), "num_params": whole(None), "hidden_size": whole(None), "num_layers": whole(None)},
        ),
        "model_info_path": text(),
        "mp_size": whole(1),
        "max_train_batch_size": whole(None),
        "min_train_batch_size": whole(1),
        "max_train_micro_batch_size_per_gpu": whole(1024),
        "min_train_micro_batch_size_per_gpu": whole(1),
        "num_tuning_micro_batch_sizes": whole(3),
    },
)
