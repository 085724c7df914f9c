"""A process that has imported what a worker needs and forks one child a rank, which spares each trial the imports.

Reads one JSON line a trial, {"folder", "environments": [one dict a rank]}, and answers with the list of exit codes. A child
that does not end within TIMEOUT_SECONDS is killed and counts as 124.
"""

import json
import os
import signal
import sys
import time

TIMEOUT_SECONDS = 150


def child(folder: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    log = os.open(os.path.join(folder, "train.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from glmexp.train.__main__ import main

    if "TEST_FAULT" in environment:
        plant(environment["TEST_FAULT"])
    if "TEST_FP16" in environment:
        from deepspeed.accelerator import get_accelerator

        # DeepSpeed refuses fp16 on the CPU; its loss scaler works there all the same.
        type(get_accelerator()).is_fp16_supported = lambda self: True
    main([folder])


def save_before_the_first_step() -> None:
    """Saves what a run goes on from once more, as it lies in the engine then."""
    from glmexp.train.loop import Loop

    run = Loop.run

    def saving(self, batches, metrics, first_step, pause):
        assert pause.checkpoints.save(self.engine, first_step - 1, self.skips)
        return run(self, batches, metrics, first_step, pause)

    Loop.run = saving


def plant(fault: str) -> None:
    """``KIND:STEP`` (0 is every step), optionally ``KIND:STEP:RANK``, in the forward pass."""
    import torch

    from glmexp.train.loop import Loop

    kind, step, *rank = fault.split(":")
    if kind == "disk":
        import shutil

        shutil.disk_usage = lambda path: shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
        return
    if kind == "small_release":
        shrink_releases()
        return
    if kind == "saves_first":
        save_before_the_first_step()
        return
    if kind in ("export_fails", "export_is_killed"):
        break_export(killed=kind == "export_is_killed")
        return
    if rank and rank[0] != os.environ["RANK"]:
        return
    if kind == "old_listing":
        from glmexp.trial import saved

        folders = saved.folders
        saved.folders = lambda run: folders(run)[:-1]
        return
    if kind == "slow":
        import glmexp.data

        prepare = glmexp.data.prepare
        glmexp.data.prepare = lambda *arguments: (time.sleep(int(step)), prepare(*arguments))
        return
    forward = Loop.forward

    def faulty(self, batch):  # type: ignore[no-untyped-def]
        loss = forward(self, batch)
        if int(step) in (0, self.where.step):
            if kind == "gradient":
                loss.register_hook(lambda gradient: gradient * float("inf"))
            elif kind == "loss":
                return loss * float("nan")
            elif kind == "gpu_memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            elif kind == "host_memory":
                raise MemoryError
            elif kind == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
            elif kind == "bug":
                raise ValueError("a shape is wrong\nand more")
        return loss

    Loop.forward = faulty


def shrink_releases() -> None:
    """The released models become small ones of the same kind, and nothing can be fetched."""
    from dataclasses import replace

    import huggingface_hub

    from glmexp.models import description

    preset = description.preset

    def small(path: str):  # type: ignore[no-untyped-def]
        found = preset(path)
        return found and replace(found, num_layers=2, padded_vocab_size=512, hidden_size=256, num_attention_heads=2)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be fetched")

    description.preset = small
    huggingface_hub.snapshot_download = refuse  # type: ignore[assignment]


def break_export(killed: bool) -> None:
    """The weights are written, and then the process fails or is killed, before the tokenizer is."""
    import transformers

    def save_pretrained(self, folder, **options):  # type: ignore[no-untyped-def]
        assert os.path.getsize(os.path.join(folder, "model.safetensors")) > 0
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(28, "No space left on device")

    transformers.PreTrainedTokenizerBase.save_pretrained = save_pretrained


def wait(pids: list[int]) -> list[int]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in [pid for pid in pids if pid not in codes]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = 124
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def serve() -> None:
    import deepspeed

    # Half of what a short ZeRO run takes: it draws in torch's compiler.
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
    import peft  # noqa: F401
    import transformers.models.glm.modeling_glm  # noqa: F401

    import glmexp.config
    import glmexp.data
    import glmexp.models.load
    import glmexp.train.loop
    import glmexp.train.metrics.movement
    import glmexp.train.run
    import glmexp.train.weights.save  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for environment in order["environments"]:
            pid = os.fork()
            if pid == 0:
                try:
                    child(order["folder"], environment)
                finally:
                    os._exit(99)
            pids.append(pid)
        print(json.dumps(wait(pids)), flush=True)


if __name__ == "__main__":
    serve()
    os._exit(0)  # taking torch down takes seconds, and most of a minute beside other tests
