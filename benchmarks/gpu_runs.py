"""Runs glmexp on the GPUs of this machine and prints what each run measured: python benchmarks/gpu_runs.py [NAME ...]

Needs no weights and no network: the 6.2-billion-parameter shape is initialised at random and fed random tokens. Writes
``gpu_runs.json`` beside the run folders (``--out DIR``); exits 1 if a run ended otherwise than expected.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

SIX_B = [
    "model=chatglm2_6b", "model.init=random", "data=synthetic", "data.max_length=1024", "batch.micro=8",
    "train.max_steps=8", "train.save_weights=false",
]  # fmt: skip
TINY = ["model=tiny", "train.max_steps=20", "train.save_weights=false"]

FIXED = ["data=synthetic", "data.max_length=256"]  # DeepCompile compiles again for each new length
BIG_ENOUGH = ["zero.stage3_param_persistence_threshold=0"]  # a tiny model's tensors would all stay whole on every rank
TWO = ["launch.ranks=2", "zero=stage3", *BIG_ENOUGH]

# name -> (overrides, expected state, whether a step must have been skipped)
RUNS: dict[str, tuple[list[str], str, bool]] = {
    "6b-lora": ([*SIX_B, "method=lora"], "complete", False),
    "6b-lora-checkpoint": ([*SIX_B, "method=lora", "activation=checkpoint"], "complete", False),
    "6b-qlora": ([*SIX_B, "method=qlora"], "complete", False),
    "6b-qlora-checkpoint": ([*SIX_B, "method=qlora", "activation=checkpoint"], "complete", False),
    "6b-dora-checkpoint": ([*SIX_B, "method=lora", "method.dora=true", "activation=checkpoint"], "complete", False),
    "6b-freeze-checkpoint": ([*SIX_B, "method=freeze", "activation=checkpoint"], "complete", False),
    "6b-full-stage3-checkpoint": ([*SIX_B, "zero=stage3", "method=full", "activation=checkpoint"], "complete", False),
    "6b-full-stage2-out-of-memory": ([*SIX_B, "zero=stage2", "method=full", "activation=checkpoint"], "oom", False),
    "6b-lora-on-24-gib": (
        [*SIX_B, "method=lora", "activation=checkpoint", "hardware=rtx4090", "hardware.emulate=true"], "complete", False,
    ),
    "6b-full-on-24-gib": (
        [*SIX_B, "method=full", "zero=stage0", "hardware=rtx4090", "hardware.emulate=true"], "oom", False,
    ),
    "tiny-default": (["train.save_weights=false"], "complete", False),
    "tiny-stage0": ([*TINY, "zero=stage0"], "complete", False),
    "tiny-stage3-lora": ([*TINY, "zero=stage3", "method=lora", "activation=checkpoint"], "complete", False),
    "tiny-qlora": ([*TINY, "method=qlora"], "complete", False),
    "tiny-qlora-fp16": ([*TINY, "method=qlora", "precision=fp16", "activation=checkpoint"], "complete", False),
    "tiny-qlora-autocast": ([*TINY, "method=qlora", "precision=autocast"], "complete", False),
    "tiny-qlora-dora": ([*TINY, "method=qlora", "method.dora=true"], "complete", False),
    "tiny-qlora-stage3": ([*TINY, "method=qlora", "zero=stage3", *BIG_ENOUGH], "complete", False),
    "tiny-qlora-offload-cpu-all": ([*TINY, "method=qlora", "zero=stage3", "offload=cpu_all", *BIG_ENOUGH], "complete", False),
    "tiny-offload-cpu": ([*TINY, "zero=stage2", "offload=cpu"], "complete", False),
    "tiny-offload-cpu-all": ([*TINY, "zero=stage3", "offload=cpu_all"], "complete", False),
    "tiny-fp16-overflow": ([*TINY, "precision=fp16", "scaler.initial_scale_power=24"], "complete", True),
    "tiny-fp16-static": ([*TINY, "precision=fp16", "scaler=static"], "complete", False),
    "tiny-fp16-diverges": (
        [*TINY, "precision=fp16", "optimizer.lr=1e4", "scaler.initial_scale_power=4", "train.max_steps=60"], "diverged", False,
    ),
    "tiny-ptuning-fp16": (
        [*TINY, "method=ptuning_v2", "optimizer.lr=1", "precision=fp16", "activation=checkpoint"], "complete", False,
    ),
    "tiny-autocast": ([*TINY, "precision=autocast"], "complete", False),
    "tiny-bf16-states": ([*TINY, "precision=bf16_states"], "complete", False),
    "tiny-muon": ([*TINY, "optimizer=muon", "train.grad_clip=null"], "complete", False),
    "tiny-zenflow": ([*TINY, "offload=zenflow", "batch.accumulation=4"], "complete", False),
    "tiny-super-offload": ([*TINY, "zero=stage3", "offload=super_offload", "train.grad_clip=null"], "complete", False),
    "tiny-deepcompile": ([*TINY, *FIXED, "zero=stage3", "kernels=deepcompile"], "complete", False),
    "tiny-quantised-weights": (
        [*TINY, "zero=stage3", "zero.zero_quantized_weights=true", *BIG_ENOUGH], "complete", False,
    ),
    # Refused in words where libaio is not installed; "complete" where it is.
    "tiny-nvme": ([*TINY, "zero=stage3", "offload=nvme", "offload.nvme_path=/tmp"], "exit 2", False),
    "6b-full-bf16-states": ([*SIX_B, "precision=bf16_states", "activation=checkpoint"], "complete", False),
    "6b-ptuning-checkpoint": (
        [*SIX_B, "method=ptuning_v2", "optimizer.lr=2e-2", "activation=checkpoint"], "complete", False,
    ),
    "6b-lora-deepcompile": ([*SIX_B, "method=lora", "zero=stage3", "kernels=deepcompile"], "complete", False),
    "two-plain": ([*TINY, *TWO, "batch.micro=2"], "complete", False),
    "two-qlora": ([*TINY, *TWO, "method=qlora", "batch.micro=2"], "complete", False),
    "two-qlora-stage2": ([*TINY, "launch.ranks=2", "method=qlora", "batch.micro=2"], "complete", False),
    "two-6b-qlora": ([*SIX_B, *TWO, "method=qlora", "activation=checkpoint", "batch.micro=4"], "complete", False),
    "two-ulysses": ([*TINY, *TWO, "comm=ulysses", "batch.micro=4"], "complete", False),
    "two-hpz": ([*TINY, *TWO, "zero.zero_hpz_partition_size=2", "batch.micro=2"], "complete", False),
    "two-quantised-weights": ([*TINY, *TWO, "zero.zero_quantized_weights=true", "batch.micro=2"], "complete", False),
    "two-6b-lora-ulysses": (
        [*SIX_B, "method=lora", "zero=stage3", "comm=ulysses", "launch.ranks=2", "activation=checkpoint",
         "data.max_length=8192", "batch.micro=1"], "complete", False,
    ),
}  # fmt: skip
ONE_GPU = [name for name in RUNS if not name.startswith("two-")]
COLUMNS = (
    "tokens_per_second",
    "mfu",
    "step_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "update_seconds",
    "peak_allocated_gib",
    "host_peak_gib",
    "loss_first",
    "loss_last",
    "skipped_steps",
)


def run(name: str, overrides: list[str], out: Path, extra: list[str]) -> dict[str, object]:
    """One run in a folder of its own; what its ``result.json`` says, with the whole seconds that the command took."""
    folder = out / name
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "glmexp", *overrides, *extra, f"hydra.run.dir={folder}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - started
    result = json.loads((folder / "result.json").read_text()) if (folder / "result.json").is_file() else {}
    return {
        "name": name, "overrides": overrides, "state": result.get("state", f"exit {done.returncode}"),
        "reason": result.get("reason") or done.stderr[-2000:], "seconds": seconds, **result.get("metrics", {}),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="runs to make; default all that need one GPU")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu_runs"))
    parser.add_argument("--extra", nargs="*", default=[], help="overrides added to each run")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows, wrong = [], []
    print(f"{'run':<30}{'state':<10}{'s':>7}" + "".join(f"{column:>19}" for column in COLUMNS), flush=True)
    for name in arguments.names or ONE_GPU:
        overrides, expected, skips = RUNS[name]
        row = run(name, overrides, arguments.out.resolve(), arguments.extra)
        rows.append(row)
        cells = [f"{value:>19.4g}" if isinstance(value := row.get(column), int | float) else f"{'-':>19}" for column in COLUMNS]
        print(f"{name:<30}{row['state']:<10}{row['seconds']:>7.1f}{''.join(cells)}", flush=True)
        if row["state"] != expected or (skips and not row.get("skipped_steps")):
            wrong.append(name)
        if row["state"] != "complete":
            print(f"    {row['reason']}", flush=True)
        (arguments.out / "gpu_runs.json").write_text(json.dumps(rows, indent=2, default=str) + "\n")
    print(f"not as expected: {', '.join(wrong)}" if wrong else "all as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
