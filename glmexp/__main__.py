"""The command line: ``python -m glmexp [VERB] [OVERRIDES]``.

This process composes and watches; the work is done by the ranks that it starts. It imports neither torch nor deepspeed nor
transformers, so ``--help`` and a typo cost a third of a second.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from glmexp.config.choices import Task
from glmexp.config.compose import VERSION_BASE, check_overrides, conf_dir, from_composition, register
from glmexp.config.errors import UserError, nearest
from glmexp.config.wording import from_hydra
from glmexp.trial.launcher import Outer, detect, refusal_of_multirun, without_local_rank
from glmexp.trial.node import new_run_id, once_a_node

TASKS = tuple(task.value for task in Task)
VERBS = (*TASKS, "preview")
FLAGS_WITH_VALUE = ("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
USER_ERROR = 2
INTERRUPTED = (129, 130, 143)


def main() -> int:
    """Runs the command line and returns the exit code: 0 well, 2 the user's error, 130/143 interrupted, 1 anything else."""
    arguments = without_local_rank(sys.argv[1:])
    outer = detect(os.environ)
    return once_a_node(lambda: worded(arguments, outer), outer)


def worded(arguments: Sequence[str], outer: Outer | None) -> int:
    """Runs the command line; a user's error becomes a message and exit code 2, or a traceback with HYDRA_FULL_ERROR=1."""
    full = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        return run(arguments, outer)
    except UserError as error:
        if full:
            raise
        return told(error)
    except (HydraException, OmegaConfBaseException) as error:
        if full:
            raise
        return told(from_hydra(error))
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        if full:
            raise
        return told(UserError(f"a YAML file of the configuration cannot be read\n{' '.join(str(error).split())[:400]}"))
    except BrokenPipeError:  # as with `check ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if full:
            raise
        print(f"glmexp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def told(error: UserError) -> int:
    print(f"glmexp: {error}", file=sys.stderr)
    return USER_ERROR


def run(arguments: Sequence[str], outer: Outer | None) -> int:
    verb, flags, overrides = split(arguments)
    check_overrides(overrides)
    if verb == "preview":
        from glmexp.trial.preview import preview

        return preview(flags, overrides)
    if outer is not None and any(flag in ("--multirun", "-m") for flag in flags):
        raise UserError(refusal_of_multirun(outer))
    # Flags first: argparse takes the overrides of Hydra's command line in one run only.
    return compose_and_run([*flags, *([f"task={verb}"] if verb else []), *overrides], new_run_id(outer.node if outer else 0))


def split(arguments: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """The verb, Hydra's flags with their values, and the overrides; raises UserError for a bare word that is no verb."""
    verb, flags, overrides = None, [], []
    waiting = iter(arguments)
    for word in waiting:
        if word in FLAGS_WITH_VALUE:
            flags += [word, *([value] if (value := next(waiting, None)) is not None else [])]
        elif word.startswith("-") or (flags and flags[-1] in ("--info", "-i") and word in INFO):
            flags.append(word)
        elif re.fullmatch(r"[A-Za-z_]+", word):
            if verb is not None or word not in VERBS:
                close = nearest(word, VERBS)
                hint = f"; did you mean {close}?" if close and verb is None else ""
                raise UserError(f"{word}: no such verb{hint}\nverbs: {', '.join(VERBS)}; an override is written key=value")
            verb = word
        else:
            overrides.append(word)
    if verb and any(override.lstrip("+").startswith("task=") for override in overrides):
        raise UserError(f"{verb} and task=... both say what to do; leave one out")
    return verb, flags, overrides


def compose_and_run(arguments: Sequence[str], run_id: str) -> int:
    """Lets Hydra compose one configuration, or many under ``--multirun``, and runs each; raises UserError for a single one."""
    register()
    os.environ["GLMEXP_RUN_ID"] = run_id
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them; worded() does that
    codes: list[int] = []
    refused: list[UserError] = []

    def task(composed: DictConfig) -> None:
        # Not raised through Hydra, which would print a line of its own about it.
        try:
            codes.append(run_one(composed))
        except UserError as error:
            refused.append(error)

    sys.argv = [sys.argv[0], *arguments]
    entry: Callable[[], None] = hydra.main(version_base=VERSION_BASE, config_path=conf_dir(), config_name="config")(task)
    entry()
    if refused:
        raise refused[0]
    return overall(codes)


def run_one(task: DictConfig) -> int:
    """One configuration, to its end; the exit code."""
    from glmexp.trial.tasks import run_task

    node = HydraConfig.get()
    assert isinstance(node, DictConfig)
    folder = Path(node.runtime.output_dir)
    overrides = [str(text) for text in OmegaConf.to_container(node.overrides.task, resolve=False)]  # type: ignore[union-attr]
    try:
        code = run_task(from_composition(task, node), folder, overrides)
    except UserError as error:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if node.mode is RunMode.MULTIRUN:  # one impossible combination does not end the sweep
            return told(error)
        raise
    if code in INTERRUPTED and node.mode is RunMode.MULTIRUN:
        raise SystemExit(code)
    return code


def overall(codes: Sequence[int]) -> int:
    """The exit code of several runs: the first that is not 0, but a refused combination does not count beside one that ran."""
    return next((code for code in codes if code and not (code == USER_ERROR and 0 in codes)), 0)


if __name__ == "__main__":
    sys.exit(main())
