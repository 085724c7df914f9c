"""``offload_optimizer``, ``offload_param`` and ``aio``."""

from collections.abc import Iterator

from glmexp.dsconfig.findings import Finding, Kind
from glmexp.dsconfig.rules.asked import Asked, asks, error, warning

OPTIMIZER, PARAM = "zero_optimization.offload_optimizer", "zero_optimization.offload_param"

ON_NVME = {
    OPTIMIZER: ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"),
    PARAM: ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
}
"""Members that only a device of "nvme" reads (runtime/zero/stage3.py, runtime/swap_tensor)."""

ADAMS = ("adam", "adamw")


def findings(asked: Asked) -> Iterator[Finding]:
    yield from _nvme(asked)
    yield from _only_for_nvme(asked)
    yield from _shares(asked)
    yield from _super_offload(asked)
    yield from _torch_adam(asked)


def _nvme(asked: Asked) -> Iterator[Finding]:
    if asked.optimizer_device == "nvme" and asked.stage in (1, 2):
        message = (
            f"at stage {asked.stage} DeepSpeed silently uses host memory instead of NVMe; "
            'write "cpu", or use stage 3 with nvme_path'
        )
        yield error(f"{OPTIMIZER}.device", Kind.no_effect, message)
    if asked.stage != 3:
        return
    for section, device in ((OPTIMIZER, asked.optimizer_device), (PARAM, asked.param_device)):
        path = asked.view.raw(f"{section}.nvme_path")
        if device == "nvme" and (path is None or path in ("", "none")):
            yield error(f"{section}.nvme_path", Kind.value, 'must be a folder on the NVMe device when the device is "nvme"')


def _only_for_nvme(asked: Asked) -> Iterator[Finding]:
    on_nvme = "nvme" in (asked.optimizer_device, asked.param_device)
    for section, device in ((OPTIMIZER, asked.optimizer_device), (PARAM, asked.param_device)):
        # A section that is off, or inert at this stage, is named as a whole or not at all.
        if device == "cpu" and asked.has(section) and asked.stage in ((1, 2, 3) if section == OPTIMIZER else (3,)):
            for name in ON_NVME[section]:
                if asks(asked.section(section).get(name)):
                    yield error(f"{section}.{name}", Kind.no_effect, 'is read with a device of "nvme" alone; leave it out')
    known = asked.optimizer_device is not None and asked.param_device is not None and asked.stage is not None
    if known and asked.section("aio") and not (on_nvme and asked.stage == 3):
        yield error("aio", Kind.no_effect, "is read with offloading to nvme at stage 3 alone; leave it out")


def _shares(asked: Asked) -> Iterator[Finding]:
    """``ratio`` (runtime/zero/config.py offload_ratio_check, runtime/zero/stage3.py)."""
    key = f"{OPTIMIZER}.ratio"
    ratio = asked.number(key, 1.0)
    if ratio is None or ratio >= 1:
        return
    if asked.stage in (0, 1, 2):
        yield error(key, Kind.contradiction, f"{ratio:g} is refused at stage {asked.stage}; below 1 it needs stage 3")
    elif asked.stage == 3 and asked.optimizer_device == "none":
        yield error(key, Kind.no_effect, 'has no effect without offloading; set the device to "cpu"')
    elif asked.stage == 3 and (asked.on("optimizer.params.torch_adam") or asked.optimizer_type not in (None, *ADAMS)):
        yield error(key, Kind.contradiction, "below 1 it needs DeepSpeed's CPU Adam: type AdamW without torch_adam")


def _super_offload(asked: Asked) -> Iterator[Finding]:
    key, cores = f"{OPTIMIZER}.super_offload", f"{OPTIMIZER}.cpuadam_cores_perc"
    wanted = asked.on(key)
    if wanted and asked.stage in (0, 1, 2) and asked.optimizer_device != "none":
        yield error(key, Kind.no_effect, f"has no effect at stage {asked.stage}; it needs stage 3")
    elif wanted and asked.optimizer_device in ("none", "nvme"):
        yield error(key, Kind.contradiction, f'needs a device of "cpu", not "{asked.optimizer_device}"')
    if wanted is False and asked.asks(cores) and asked.optimizer_device != "none":
        yield error(cores, Kind.no_effect, "is read with super_offload true alone; leave it out")


def _torch_adam(asked: Asked) -> Iterator[Finding]:
    """Torch's AdamW instead of the CPU Adam (runtime/engine.py, get_optimizer_configuration, _do_optimizer_sanity_check)."""
    forced = asked.on("zero_force_ds_cpu_optimizer", default=True)
    if forced is False and asked.offloads_optimizer and asked.stage in (1, 2, 3) and not asked.section("optimizer"):
        whose = "the Trainer's" if asked.trainer else "the program's"
        message = f"false lets {whose} own optimizer run on the host, several times slower than DeepSpeed's CPU Adam; use true"
        yield warning("zero_force_ds_cpu_optimizer", Kind.value, message)
    if asked.on("optimizer.params.torch_adam") and asked.offloads_optimizer and not asked.section("zero_optimization.zenflow"):
        message = "true runs torch's AdamW on the host, several times slower than DeepSpeed's CPU Adam; leave it out"
        yield warning("optimizer.params.torch_adam", Kind.contradiction, message)
