"""The process that holds one SwanLab run: JSON lines come in, JSON lines go out.

SwanLab keeps one run a process and hooks its exit, its exceptions and its terminal, so each run has a process of its own and
the trials of a sweep can be recorded side by side. Run as ``python -m glmexp.track.swanlab_process``; it ends with its input,
and a run that was not finished by then, because the parent is gone, is recorded as aborted.
"""

import json
import os
import signal
import sys
from typing import Any, TextIO

LAST_SECONDS = 60


def main() -> None:
    # What SwanLab prints would get between the lines: it goes nowhere, and the answers to what was the standard output.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())
    os.dup2(silent, sys.stderr.fileno())
    try:
        serve(sys.stdin, answers)
    except Exception as error:
        answer(answers, error=f"{type(error).__name__}: {error}")


def serve(calls: TextIO, answers: TextIO) -> None:
    run = start(json.loads(next(calls)))
    try:
        answer(answers, where=str(run.url if run.mode == "online" else run.dir), id=run.id)
        for line in calls:
            call = json.loads(line)
            if "finish" in call:
                run.config.update({"result": call["result"]})
                run.finish(**call["finish"])
                answer(answers, finished=True)
                return
            run.log(call["row"], step=call["step"])
    finally:
        if run.alive:
            signal.alarm(LAST_SECONDS)  # nobody is left who would end a process that waits for a server
            run.finish(state="aborted", error="the process that recorded the run ended before it")


def start(call: dict[str, Any]) -> Any:
    import swanlab

    # Nothing of the machine, the code or the terminal, and no question.
    about_machine = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
    settings = swanlab.Settings(
        interactive=False,
        probe=swanlab.Settings.Probe(**dict.fromkeys(about_machine, False)),
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
    )
    return swanlab.init(settings=settings, **call)


def answer(answers: TextIO, **told: Any) -> None:
    answers.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
