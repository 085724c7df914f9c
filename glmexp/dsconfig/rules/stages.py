"""Keys of ``zero_optimization`` that the ZeRO stage does not read."""

from collections.abc import Iterator

from glmexp.config.zero import STAGES
from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import STAGE3_ALIASES, Asked, asks, error

READ_AT: dict[str, tuple[int, ...]] = {
    **{key: stages for key, stages in STAGES.items() if not key.startswith("allgather_")},  # those are read by nobody
    **{name: (3,) for alias in STAGE3_ALIASES for name in (alias, f"stage3_{alias}")},
    "stage3_gather_fp16_weights_on_model_save": (3,),
    "use_multi_rank_bucket_allreduce": (1, 2),
    "parameter_alignment": (1, 2),
    "elastic_checkpoint": (1, 2),
    "load_from_fp32_weights": (1, 2, 3),
    "offload_optimizer": (1, 2, 3),
    "cpu_offload": (1, 2, 3),
    "offload_param": (3,),
    "cpu_offload_param": (3,),
    "zenflow": (1, 2, 3),
    "leaf_module": (3,),
    "memory_efficient_linear": (3,),
    "override_module_apply": (3,),
    "log_trace_cache_warnings": (3,),
    "enable_sanity_checks": (3,),
    "save_muon_momentum_buffer_in_memory": (3,),
}
"""Key -> the stages whose optimizer takes it (runtime/engine.py, _configure_zero_optimizer); DeepSpeed accepts it at any."""

NOTHING = {
    "zero_hpz_partition_size": (0, 1),
    "prefetch_bucket_size": (0,),
    "module_granularity_threshold": (0,),
}
"""Numbers by which a key is off."""

WHY = {
    "offload_optimizer": "there is no sharded optimizer to move, and on a GPU DeepSpeed's CPU Adam then refuses the parameters",
    "offload_param": "only stage 3 shards parameters",
}


def findings(asked: Asked) -> Iterator[Finding]:
    if asked.stage is None:
        return
    for name, value in asked.section("zero_optimization").items():
        stages = READ_AT.get(name, ())
        off = NOTHING.get(name.removeprefix("stage3_"), ()) if isinstance(name, str) else ()
        if not stages or asked.stage in stages or not asks(value) or (isinstance(value, int) and value in off):
            continue
        if asked.trainer and name.startswith("offload_") and asked.view.raw(f"zero_optimization.{name}.device") == "auto":
            continue  # accelerate fills in "none" unless told otherwise
        why = f": {WHY[name]}" if name in WHY else ""
        yield error(
            f"zero_optimization.{name}",
            Kind.no_effect,
            f"has no effect at stage {asked.stage}{why}; leave it out, or use stage {_words(stages)}",
        )


def _words(stages: tuple[int, ...]) -> str:
    return " or ".join(str(stage) for stage in stages)
