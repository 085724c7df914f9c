"""What a trial costs beyond its own steps, started cold and warm: python benchmarks/sweep_overhead.py [OVERRIDE ...]

Runs the same short measurement ``--trials`` times each way, through the function that a sweep calls, needs neither weights nor
network, prints a table and writes ``sweep_overhead.json``. The first warm trial pays for its server's imports; the target is
for the others. ``--model chatglm2_6b`` takes the shape of 6.2 billion parameters at random, for a GPU.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from glmexp.config import compose
from glmexp.trial.machine import cpu_count
from glmexp.trial.placement import resolve
from glmexp.trial.record import LOG, METRICS, State
from glmexp.trial.run import run_trial
from glmexp.trial.starter import COLD, Starter
from glmexp.trial.warm import WarmStarter

MODELS = {
    "tiny": ["model=tiny", "data.max_length=64"],
    "chatglm2_6b": ["model=chatglm2_6b", "model.init=random", "method=lora", "data.max_length=1024", "batch.micro=2"],
}
# No warm-up, so that metrics.jsonl has the seconds of every step.
SHORT = ["task=measure", "data=synthetic", "tracker=none", "measure.warmup_steps=0", "measure.steps=5"]


class Watch:
    """A view that draws nothing and notes when rank 0 was first seen in each phase, to a tenth of a second."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seen: dict[str, float] = {}

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def update(self, records: Any, rows: Any = ()) -> None:
        for record in records:
            if record.rank == 0:
                self.seen.setdefault(record.phase.value, round(time.perf_counter() - self.began, 3))

    def note(self, line: str) -> None:
        """Nothing to show."""


def trial(composed: Any, folder: Path, starter: Starter) -> dict[str, Any]:
    """One trial; its seconds from the call to the return, those of its steps, and when it was seen in which phase."""
    placement = resolve(composed.config, os.environ)
    watch = Watch()
    result = run_trial(composed, folder, [], placement, view=watch, starter=starter)
    seconds = time.perf_counter() - watch.began
    if result.state is not State.complete:
        print((folder / LOG).read_text()[-3000:], file=sys.stderr)
        raise SystemExit(f"{result.state.value}: {result.reason}")
    steps = [json.loads(line)["step_seconds"] for line in (folder / METRICS).read_text().splitlines()]
    return {
        "seconds": seconds,
        "steps_seconds": sum(steps),
        "beyond_steps": seconds - sum(steps),
        "first_step": steps[0],
        "median_step": statistics.median(steps),
        "seen": watch.seen,
        "loss_last": result.metrics["loss_last"],
        "host_peak_gib": result.metrics["host_peak_gib"],
        "peak_allocated_gib": result.metrics["peak_allocated_gib"],
    }


def show(name: str, row: dict[str, Any]) -> None:
    seen = "  ".join(f"{phase} {second:.1f}" for phase, second in row["seen"].items())
    print(
        f"{name:<10}{row['seconds']:>8.2f}{row['steps_seconds']:>8.2f}{row['beyond_steps']:>8.2f}"
        f"{row['first_step']:>8.2f}{row['host_peak_gib']:>8.2f}  {seen}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("overrides", nargs="*", help="added to the configuration of every trial")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--trials", type=int, default=4, help="of each kind")
    parser.add_argument("--limit", type=float, help="seconds beyond its steps that a warm trial may take; more exits 1")
    parser.add_argument("--out", type=Path, default=Path("outputs/sweep_overhead"))
    arguments = parser.parse_args()
    launch = [f"launch.device={arguments.device}", f"launch.ranks={arguments.ranks}"]
    composed = compose([*SHORT, *MODELS[arguments.model], *launch, *arguments.overrides])
    folder = arguments.out.resolve()
    shutil.rmtree(folder / "trials", ignore_errors=True)
    print(
        f"{'trial':<10}{'s':>8}{'steps s':>8}{'beyond':>8}{'step 1':>8}{'host GiB':>9} first seen in a phase, s after the call"
    )
    rows: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    with WarmStarter() as warm:
        for kind, starter in (("cold", COLD), ("warm", warm)):
            for number in range(1, arguments.trials + 1):
                rows[kind].append(trial(composed, folder / "trials" / f"{kind}{number}", starter))
                show(f"{kind} {number}", rows[kind][-1])
    cold = statistics.median(row["beyond_steps"] for row in rows["cold"])
    later = statistics.median(row["beyond_steps"] for row in rows["warm"][1:] or rows["warm"])
    print(f"beyond its steps: cold {cold:.2f} s, warm {later:.2f} s (medians; warm without the first)")
    same = {row["loss_last"] for kind in rows for row in rows[kind]}
    print(f"the last loss is {'the same in all' if len(same) == 1 else f'not the same: {sorted(same)}'}")
    report = {
        "model": arguments.model,
        "overrides": arguments.overrides,
        "device": resolve(composed.config, os.environ).device_name,
        "cpus": cpu_count(),
        "python": platform.python_version(),
        "cold_beyond_steps": cold,
        "warm_beyond_steps": later,
        **rows,
    }
    (folder / "sweep_overhead.json").write_text(json.dumps(report, indent=2) + "\n")
    print(f"wrote {folder / 'sweep_overhead.json'}")
    return 1 if arguments.limit is not None and later > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
