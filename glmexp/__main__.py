"""The command line: ``python -m glmexp [VERB] [OVERRIDES]``.

This process composes and watches; the work is done by the ranks that it starts. It imports neither torch nor deepspeed nor
transformers, so ``--help`` and a typo cost a third of a second, and Hydra only for the verbs that compose.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path

from glmexp import __version__
from glmexp.config.choices import Task
from glmexp.config.errors import USER_ERROR, UserError, nearest
from glmexp.trial.launcher import Outer, detect, refusal_of_multirun, without_local_rank
from glmexp.trial.node import new_run_id, once_a_node
from glmexp.trial.redact import refuse_secret_values

TASKS = tuple(task.value for task in Task)
COMPOSING = {"explain": "glmexp.trial.explain", "preview": "glmexp.trial.preview"}
"""Verbs that take overrides and only show something -> the module with a function of that name."""
STANDALONE = {
    "lint": "glmexp.dsconfig.lint_command",
    "convert": "glmexp.dsconfig.convert_command",
    "report": "glmexp.sweep.report_command",
    "doctor": "glmexp.trial.doctor",
    "evaluate": "glmexp.trial.evaluate",
    "predict": "glmexp.trial.predict",
    "export": "glmexp.trial.export",
}
"""Verbs that compose nothing and take arguments of their own -> the module with ``main(arguments)``."""
VERBS = (*TASKS, *COMPOSING, *STANDALONE)
FLAGS_WITH_VALUE = (
    *("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c"),
    "--experimental-rerun",
)
HELP = ("--help", "-h")
FLAGS = (
    *(*FLAGS_WITH_VALUE, *HELP, "--hydra-help", "--version", "--multirun", "-m", "--run", "-r", "--resolve"),
    *("--info", "-i", "--shell-completion", "-sc"),
)
"""Hydra's, told of here because argparse, which would refuse another, prints its usage and not the next move."""
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main() -> int:
    """Runs the command line and returns the exit code: 0 well, 2 the user's error, 130/143 interrupted, 1 anything else."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Chinese on an ASCII terminal
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]  # rich would print nothing
    # A scheduler's notice that time is almost up ends nothing by itself, here or in a rank; a run with checkpoints takes it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    arguments = without_local_rank(sys.argv[1:])
    outer = detect(os.environ)
    return once_a_node(lambda: worded(arguments, outer), outer)


def worded(arguments: Sequence[str], outer: Outer | None) -> int:
    """Runs the command line; a user's error becomes a message and exit code 2, or a traceback with HYDRA_FULL_ERROR=1."""
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        return run(arguments, outer)
    except BrokenPipeError:  # as with `check ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        told = None if full else in_words(error)
        if told is None:
            raise
        print(f"glmexp: {told}", file=sys.stderr)
        from_system = isinstance(error, OSError) and not type(error).__module__.startswith("hydra.")
        return 1 if from_system else USER_ERROR


def in_words(error: Exception) -> str | None:
    """What to tell the user of an error; None for one that is nobody's fault but glmexp's."""
    package = type(error).__module__.split(".")[0]
    # Hydra's MissingConfigException is an OSError too, and some of its errors are plain ValueErrors.
    if package in ("hydra", "omegaconf") or (type(error) is ValueError and raised_in(error) == "hydra"):
        from glmexp.config.wording import from_hydra

        return str(from_hydra(error))
    if isinstance(error, UserError | OSError) and not isinstance(error, UnicodeDecodeError):
        return str(error)
    if package == "yaml" or isinstance(error, UnicodeDecodeError | RecursionError):
        return f"a YAML file of the configuration cannot be read\n{' '.join(str(error).split())[:400]}"
    return None


def raised_in(error: Exception) -> str:
    """The top-level package whose code raised an error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else str(place.tb_frame.f_globals.get("__name__", "")).split(".")[0]


def versions() -> str:
    """``glmexp 0.1.0, DeepSpeed 0.19.8, torch 2.13.0, Hydra 1.3.8``, as installed."""
    names = {"deepspeed": "DeepSpeed", "torch": "torch", "transformers": "transformers", "hydra-core": "Hydra"}
    return ", ".join([f"glmexp {__version__}", *(f"{shown} {version(name)}" for name, shown in names.items())])


def run(arguments: Sequence[str], outer: Outer | None) -> int:
    if "--version" in arguments:
        print(versions())
        return 0
    if arguments and arguments[0] in STANDALONE:
        stand_alone: Callable[[Sequence[str]], int] = import_module(STANDALONE[arguments[0]]).main
        return stand_alone(arguments[1:])
    from glmexp.config.compose import check_overrides
    from glmexp.dsconfig.convert import Expanded, expand
    from glmexp.hydra_entry import compose_and_run

    verb, flags, overrides = split(arguments)
    if verb in STANDALONE:
        raise UserError(f"{verb} comes first: python -m glmexp {verb} ...")
    check_overrides(overrides)
    refuse_secret_values(overrides, os.environ)
    expanded = expand(overrides, config_dir(flags))
    for note in expanded.notes:
        print(f"note: {note}", file=sys.stderr)
    try:
        if verb in COMPOSING and not any(flag in HELP for flag in flags):
            show: Callable[[Sequence[str], Expanded], int] = getattr(import_module(COMPOSING[verb]), verb)
            return show(flags, expanded)
        preset = any(override.startswith("sweep=") for override in overrides)  # is a multirun by itself
        sweeping = preset or any(flag in ("--multirun", "-m") for flag in flags)
        if sweeping and "hydra.mode=RUN" in overrides:
            raise UserError(
                "hydra.mode=RUN and a sweep contradict each other; leave out hydra.mode=RUN, or --multirun and sweep=..."
            )
        if outer is not None and sweeping:
            raise UserError(refusal_of_multirun(outer))
        if verb is None and sweeping and not any(override.lstrip("+").startswith("task=") for override in overrides):
            verb = Task.measure.value
        return compose_and_run(
            [*flags, *([f"task={verb}"] if verb in TASKS else [])], expanded, new_run_id(outer.node if outer else 0)
        )
    except UserError as error:
        raise expanded.attribute(error) from error.__cause__


def config_dir(flags: Sequence[str]) -> str | None:
    """The folder of ``--config-dir``."""
    for flag, following in zip(flags, [*flags, None][1:], strict=True):
        name, separator, value = flag.partition("=")
        if name in ("--config-dir", "-cd"):
            return value if separator else following
    return None


def split(arguments: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """The verb, Hydra's flags with their values, and the overrides; raises UserError for a bare word that is no verb."""
    verb, flags, overrides = None, [], []
    waiting = iter(arguments)
    for word in waiting:
        if word in FLAGS_WITH_VALUE:
            value = next(waiting, None)
            if value is None:
                raise UserError(f"{word} needs a value")
            flags += [word, value]
        elif word.startswith("-") or (flags and flags[-1] in ("--info", "-i") and word in INFO):
            flags.append(word)
        elif re.fullmatch(r"[A-Za-z_]+", word):
            if verb is not None or word not in VERBS:
                close = _as_option(word) or (nearest(word, VERBS) if verb is None else None)
                hint = f"; did you mean {close}?" if close else ""
                hint = "; --help is the flag" if word == "help" else hint
                raise UserError(f"{word}: no such verb{hint}\nverbs: {', '.join(VERBS)}; an override is written key=value")
            verb = word
        elif "=" not in word and Path(word).is_file():
            raise UserError(f"{word} is a file: deepspeed_json={word} starts from it, and `lint {word}` checks it")
        else:
            overrides.append(word)
    _refuse_unknown_flags(verb, flags)
    if flags and flags[-1] in ("--info", "-i"):
        flags.append("all")
    if verb and any(override.lstrip("+").startswith("task=") for override in overrides):
        raise UserError(f"{verb} and task=... both say what to do; leave one out")
    return verb, flags, overrides


def _as_option(word: str) -> str | None:
    """``method=lora`` for ``lora``, and ``zero=...`` for ``zero``; None for a word that is neither option nor group."""
    from glmexp.config.compose import conf_dir

    if Path(conf_dir(), word).is_dir():
        return f"{word}=..."
    options = [f"{path.parent.name}={word}" for path in Path(conf_dir()).glob(f"*/{word}.yaml")]
    return options[0] if len(options) == 1 else None


def _refuse_unknown_flags(verb: str | None, flags: Sequence[str]) -> None:
    from glmexp.config.wording import known_keys

    known = (*FLAGS, "--json") if verb in COMPOSING else FLAGS
    given = (flag for before, flag in zip(["", *flags], flags, strict=False) if before not in FLAGS_WITH_VALUE)
    for name in (flag.partition("=")[0] for flag in given if flag.startswith("-")):
        if name not in known:
            close = nearest(name, known)
            hint = f"; did you mean {close}?" if close else ""
            if name.strip("-").split(".")[0] in known_keys():
                hint = f"; a field or group is set without dashes: {name.strip('-')}=..."
            raise UserError(
                f"{name}: no such option{hint}\npython -m glmexp --help lists the fields; a field is set as key=value"
            )


if __name__ == "__main__":
    sys.exit(main())
