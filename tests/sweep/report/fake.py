"""Makes sweep folders as a sweep leaves them: by the real Result, Config and DeepSpeed dict, with figures from a formula."""

import itertools
import json
from dataclasses import dataclass

from glmexp.config.compose import compose
from glmexp.config.files import save
from glmexp.dsconfig import build
from glmexp.dsconfig.machine import Machine
from glmexp.trial.record import CONFIG, DS_CONFIG, State, write_json
from glmexp.trial.result import METRIC_NAMES, Result, write_result


@dataclass
class FakeSweep:
    folder: object
    device: str = "gpu"
    started: int = 0

    def settings(self, **values):
        (self.folder / "sweep.json").write_text(json.dumps(values))

    def trial(self, name, overrides, state=State.complete, reason="", configured=True, predicted=None, **metrics):
        """One trial folder. ``configured``: with config.yaml and ds_config.json, as only a valid one has them."""
        place = self.folder / name
        place.mkdir(parents=True)
        self.started += 1
        if configured:
            config = compose(list(overrides)).config
            save(config, place / CONFIG)
            write_json(place / DS_CONFIG, build(config, Machine(1, self.device)))
        if predicted is not None:
            (place / "plan.json").write_text(json.dumps({"gpu": {"peak_gib": predicted}}))
        result = Result(
            state=state,
            reason=reason,
            overrides=list(overrides),
            config_hash=f"{self.started:016x}",
            world_size=1,
            metrics={**dict.fromkeys(METRIC_NAMES), **metrics},
            predicted=None,
            versions={},
            device={"kind": self.device, "name": f"some {self.device}", "memory_gib": None},
            times={"started": f"2026-01-01T00:00:{self.started:03}", "finished": "", "seconds": 12.5},
        )
        write_result(result, place)
        return place


def measured(speed, gpu=None, reserved=None, host=4.0, spread=0.001, **more):
    """Metrics of a trial of ``measure`` with 1024 tokens a step."""
    seconds = 1024 / speed
    return {
        "tokens_per_second": speed, "samples_per_second": speed / 512, "step_seconds": seconds, "step_seconds_spread": spread,
        "steps": 10, "skipped_steps": 0, "host_peak_gib": host, "peak_allocated_gib": gpu,
        "peak_reserved_gib": gpu * 1.1 if gpu and reserved is None else reserved, **more,
    }  # fmt: skip


def grid(folder, trials=60):
    """A sweep of stage x method x micro batch x checkpointing with out-of-memory, a failure and an invalid cell among it.

    The fastest of those that fit 80 GiB is stage 1, LoRA, micro batch 8 without checkpointing; only it has its configuration.
    """
    sweep = FakeSweep(folder)
    sweep.settings(objective="throughput", gpu_memory_gib=80, lang="en")
    cells = itertools.product((1, 2, 3), ("full", "lora"), (1, 2, 4, 8, 16), ("none", "checkpoint"))
    for stage, method, micro, activation in itertools.islice(cells, trials):
        overrides = [
            *("task=measure", "model=chatglm2_6b", f"zero=stage{stage}", f"method={method}", f"batch.micro={micro}"),
            f"activation={activation}",
        ]
        keep = 0.2 if activation == "checkpoint" else 1.0
        gpu = (13.0 if method == "lora" else 75.0 + stage * 6) + 5.1 * micro * keep
        speed = (9000 if method == "full" else 16000) * micro / (micro + 1.2) * (0.75 if keep < 1 else 1) * (1 - stage * 0.03)
        name = f"zero-stage{stage}_{method}_micro{micro}_{activation}-{sweep.started:08x}"
        if gpu > 115:
            reason = "out of GPU memory in step 1"
            sweep.trial(name, overrides, State.oom, reason, configured=False, peak_allocated_gib=110.0, host_peak_gib=5.0)
        elif sweep.started == 7:
            sweep.trial(name, overrides, State.failed, "rank 0: ValueError: wrong\nTraceback: <line 3>", configured=False)
        else:
            metrics = measured(speed, gpu, host=5.0 + 2 * stage, mfu=0.3)
            best = (stage, method, micro, activation) == (1, "lora", 8, "none")
            sweep.trial(name, overrides, configured=best, predicted=gpu * 1.03 + 0.5, **metrics)
    sweep.trial(
        "zero-stage0_offload-cpu", ["zero=stage0", "offload=cpu"], State.invalid, "offload=cpu needs a stage", configured=False
    )
    return sweep
