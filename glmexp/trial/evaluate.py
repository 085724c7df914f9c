"""``python -m glmexp evaluate RUN``: a run's trained model on its validation samples, by as many ranks as the run had."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from glmexp.config.checkpoint import validates
from glmexp.config.choices import TrackerName
from glmexp.config.compose import Composed, absolute_paths, compose
from glmexp.config.errors import USER_ERROR, UserError
from glmexp.config.evaluation import where_from
from glmexp.config.files import from_values, to_values
from glmexp.config.schema import Config
from glmexp.dsconfig.inference import inference
from glmexp.trial.closing import printable
from glmexp.trial.placement import resolve
from glmexp.trial.progress import ProgressView, closing
from glmexp.trial.record import EVALUATED, PREDICTIONS, REQUEST, State, write_json
from glmexp.trial.run import exit_code, run_trial
from glmexp.trial.tasks import Screen, check_inputs, warn
from glmexp.trial.use import changed, parse, run_config

HELP = """usage: python -m glmexp evaluate RUN [KEY=VALUE ...]

Loss and perplexity of a trained model on validation samples, and scores of the answers that it gives itself. RUN is the folder
of a run, finished or killed; its own config holds, with these changes:

  checkpoint=NAME          export, best, newest, or one such as step-000100; without it export/, else the best, else the newest
  data.eval_path=FILE      other validation samples; data.eval_share=S, data.eval_split=NAME and data.eval_limit=N as in a run
  eval.micro=N             samples a forward pass and rank
  eval.generate=false      loss and perplexity alone, which is much faster
  eval.metrics=NAME        chatglm2_char or chatglm3_jieba
  eval.max_new_tokens=N    longest answer; eval.temperature=T, eval.top_p=P and eval.seed=N: how answers are drawn
  launch.ranks=N           and launch.device, launch.backend, launch.timeout_minutes, launch.hang_minutes
  zero=stage3              the weights partitioned over the ranks (offload=cpu_all: on the host), or whole on each: zero=stage2

What comes out is in RUN/evaluations/TIME/: result.json, and predictions.jsonl with each question, reference and answer."""

WORKER = "glmexp.train.evaluate"
GROUPS = ("zero", "offload")
OPTIONS = (
    "checkpoint",
    *(f"data.eval_{name}" for name in ("path", "share", "split", "limit")),
    *(f"eval.{name}" for name in ("micro", "generate", "metrics", "max_new_tokens", "temperature", "top_p", "seed")),
    *(f"launch.{name}" for name in ("ranks", "device", "backend", "timeout_minutes", "hang_minutes")),
    *GROUPS,
)
SOURCES = ("data.eval_path", "data.eval_share", "data.eval_split")
"""Where validation samples come from: one of them takes the place of another."""


def main(arguments: Sequence[str]) -> int:
    """Evaluates and returns the exit code; raises UserError."""
    if not arguments or arguments[0] in ("--help", "-h"):
        print(HELP)
        return 0 if arguments else USER_ERROR
    words, given = parse("evaluate", arguments, OPTIONS)
    if len(words) != 1:
        raise UserError(f"evaluate takes the folder of one run, got {' '.join(words) or 'none'}\npython -m glmexp evaluate RUN")
    run = Path(words[0])
    trained = run_config("evaluate", run)
    checkpoint = given.pop("checkpoint", None)
    config = evaluated(trained, given)
    if not validates(config):
        raise UserError(f"{run} was trained without validation samples\nname some: {where_from(config)}")
    data = config.data if config.data.eval_path is None else replace(config.data, path=None)  # what it trained on may be gone
    check_inputs(replace(config, data=data))
    placement = resolve(config, os.environ)
    folder = new_folder(run)
    write_json(folder / REQUEST, {"run": str(run.absolute()), "checkpoint": checkpoint})
    console = Screen(soft_wrap=True, highlight=False)
    console.print(f"evaluate: {run}", markup=False)
    result = run_trial(
        Composed(config, {}),
        folder,
        list(arguments),
        placement,
        view=ProgressView(None, console),
        worker=WORKER,
        ds_config=inference(config, config.eval.micro or config.batch.micro or 1, placement.machine),
    )
    for line in result.warnings:
        warn(line)
    if result.state is State.invalid:
        raise UserError(result.reason)
    if result.state is State.complete:
        console.print(table(result.metrics, folder))
    else:
        console.print(closing(result.__dict__, folder, config))
    return exit_code(result)


def evaluated(trained: Config, given: Mapping[str, str]) -> Config:
    """The config of an evaluation: the run's own but for what is ``given`` (key -> text), and nothing of training or tracking.

    Raises:
        UserError: as composing does.
    """
    chosen = {key: value for key, value in given.items() if key not in GROUPS}
    named = [key for key in SOURCES if key in chosen]
    if named:
        chosen = {**dict.fromkeys(SOURCES, "null"), **chosen}
    config = with_groups(trained, {key: value for key, value in given.items() if key in GROUPS})
    config = replace(
        config,
        train=replace(config.train, resume=None, stop_after=None),
        checkpoint=replace(config.checkpoint, every=None, best=None),
        # Ranks that share samples and compiled layers are ways to train.
        comm=replace(config.comm, sequence_parallel_size=None),
        kernels=replace(config.kernels, deepcompile=False),
        tracker=replace(config.tracker, name=TrackerName.none),
        eval=replace(config.eval, every=None, patience=None, generate=False),
    )
    config = changed(config, chosen)
    config = from_values(absolute_paths(to_values(config)))
    return config if "eval.generate" in given else replace(config, eval=replace(config.eval, generate=True))


def with_groups(config: Config, options: Mapping[str, str]) -> Config:
    """``config`` with the groups zero and offload set to ``options`` (group -> option)."""
    if not options:
        return config
    stated = {"zero": f"stage{config.zero.stage}", **options}
    composed = compose([f"{group}={option}" for group, option in stated.items()]).config
    return replace(config, **{group: getattr(composed, group) for group in options})


def new_folder(run: Path) -> Path:
    """A folder of its own for this evaluation, made here."""
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    (run / EVALUATED).mkdir(exist_ok=True)
    for number in range(1, 1000):
        folder = run / EVALUATED / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise UserError(f"{run / EVALUATED} holds a thousand evaluations of this second")


def table(metrics: Mapping[str, Any], folder: Path) -> Text:
    """The figures, one a line; print it with ``soft_wrap=True``."""
    rows = [(name.removeprefix("eval_"), value) for name, value in metrics.items() if name.startswith("eval_")]
    shown = [(name, f"{value:.4f}") for name, value in rows if isinstance(value, int | float)]
    answers = folder / PREDICTIONS
    lines = [*shown, ("folder", str(folder)), *([("answers", str(answers))] if answers.is_file() else [])]
    return Text("\n".join(f"{name:<11}{printable(value)}" for name, value in lines))
