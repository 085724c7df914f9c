"""What the verbs that use a trained model have in common: a run's folder, options as key=value, and a child with torch."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from glmexp.config.errors import UserError, nearest
from glmexp.config.files import from_values, load, save, to_values
from glmexp.config.schema import Config
from glmexp.trial.record import CONFIG, EVALUATED, PARENT_PID, REQUEST, State, read_rank, write_json
from glmexp.trial.redact import redact, without_secrets

KILLED = "the process was killed, perhaps because the memory ran out"
FAILED = "the process has failed before it could tell why; what it wrote stands above"


def parse(verb: str, arguments: Sequence[str], options: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """The bare words and the options (key -> text) of a command line; after ``--`` every word is bare. Raises UserError.

    A word is an option where it begins with a name and ``=``, without a space before it: a question may hold the sign.
    """
    words: list[str] = []
    given: dict[str, str] = {}
    waiting = iter(arguments)
    for word in waiting:
        if word == "--":
            words += waiting
            break
        key, equals, value = word.partition("=")
        named = key.replace("_", "").replace(".", "").isalpha() and key.isascii()
        if equals and key in options:
            given[key] = value
        elif equals and named and not Path(word).exists():
            close = nearest(key.rpartition(".")[2], options)
            hint = f"; did you mean {close}?" if close else ""
            raise UserError(
                f"{word}: {verb} has no option {key}{hint}\nit takes {', '.join(options)} as key=value; bare words go after --"
            )
        elif word.startswith("-") and word != "-" and not any(letter.isspace() for letter in word):
            raise UserError(
                f"{verb} {word}: no such option; it takes {', '.join(options)} as key=value\nbare words go after --"
            )
        else:
            words.append(word)
    return words, given


def run_config(verb: str, folder: Path) -> Config:
    """The config of a run's folder. Raises UserError for anything else."""
    if not folder.is_dir():
        raise UserError(f"{verb}: {folder} is {'no folder' if folder.exists() else 'not there'}\ngive the folder of a run")
    if (folder / CONFIG).is_file():
        return load(folder / CONFIG)
    above = next((path for path in folder.absolute().parents[:2] if (path / CONFIG).is_file()), None)
    found = [path.parent for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for path in folder.glob(pattern)]
    runs = sorted((path for path in found if path.parent.name != EVALUATED), key=_changed_at, reverse=True)
    hint = "give the folder of a run, as outputs/DATE/TIME-ID"
    if above is not None:
        hint = f"give the folder of the run that it is in, {above}"
    elif runs:
        hint = f"give one of the runs in it, such as {runs[0]}"
    raise UserError(f"{verb}: {folder} is not a run: it has no {CONFIG}\n{hint}")


def _changed_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def changed(config: Config, given: Mapping[str, str]) -> Config:
    """``config`` with some fields set from the command line (dotted key -> text); raises UserError as composing does."""
    values = to_values(config)
    for key, text in given.items():
        *groups, name = key.split(".")
        node = values
        for group in groups:
            node = node[group]
        try:
            node[name] = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index,call-overload]
        except (OmegaConfBaseException, YAMLError, ValueError) as error:
            raise UserError(f"{key}={text}: {str(error).splitlines()[0]}") from error
    return from_values(values)


def ask(worker: str, config: Config, request: Mapping[str, Any]) -> int:
    """Lets ``python -m WORKER FOLDER`` do what ``request`` says, on this process's streams; returns the exit code.

    The folder is a temporary one with the config and the request. Ctrl-C is the child's to take: a chat stops its answer. What
    a terminal sends to both is handed on as what is sent to this process alone, and the child takes it once.

    Raises:
        UserError: the child told of one.
    """
    with tempfile.TemporaryDirectory(prefix="glmexp-") as name:
        folder = Path(name)
        save(config, folder / CONFIG)
        write_json(folder / REQUEST, dict(request), lasting=False)
        with subprocess.Popen([sys.executable, "-m", worker, name], env=_environment()) as child:
            before = signal.signal(signal.SIGINT, lambda number, frame: child.send_signal(number))
            try:
                code = child.wait()
            finally:
                signal.signal(signal.SIGINT, before)
        record = read_rank(folder, 0)
    state, told = (None, None) if record is None else (record.outcome, record.error)
    if state is State.complete:
        return code
    if state is State.invalid:
        raise UserError(redact(told or "refused", os.environ))
    if state is State.interrupted or code == -signal.SIGINT:
        return 128 + signal.SIGINT
    print(f"glmexp: {redact(told or (KILLED if code < 0 else FAILED), os.environ)}", file=sys.stderr)
    return 1


def _environment() -> dict[str, str]:
    """As a rank's (``trial.commands``), for one process that says no more than its answer."""
    child = without_secrets(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    child["PYTHONPATH"] = os.pathsep.join(part for part in (child.get("PYTHONPATH"), root) if part)
    child.setdefault("TRANSFORMERS_VERBOSITY", "error")
    child["HF_HUB_DISABLE_TELEMETRY"] = "1"
    child["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    child.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    return {**child, PARENT_PID: str(os.getpid())}
