"""``python -m glmexp report DIR``: builds the report of a sweep folder again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from glmexp.config.choices import Language, Objective
from glmexp.config.compose import conf_dir
from glmexp.config.errors import USER_ERROR, UserError
from glmexp.sweep.folder import SETTINGS
from glmexp.sweep.report import CSV, HTML, MARKDOWN, Settings, build, read_settings
from glmexp.sweep.report.pictures import drawn
from glmexp.sweep.report.recommended import ALL
from glmexp.sweep.report.trials import number
from glmexp.trial.record import RESULT

HELP = """usage: python -m glmexp report DIR [sweep.objective=throughput|memory] [sweep.gpu_memory_gib=GIB]
                               [hardware=CARD] [lang=en|zh]

Builds the report of a sweep folder again from the trials' result.json: report.csv, report.md, report.html, two plots and, where
a trial is recommended, recommended.yaml and its DeepSpeed config. What is not given here is as the sweep was started.
hardware=rtx4090 asks for what fits that card, as sweep.gpu_memory_gib=24 does."""

KEYS = ("sweep.objective", "sweep.gpu_memory_gib", "hardware", "lang")
MOST_LISTED = 5


def main(arguments: Sequence[str]) -> int:
    """Builds the report and returns the exit code; raises UserError for wrong arguments or a folder that is no sweep."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0 if arguments else USER_ERROR
    given = [word for word in arguments if "=" in word and not Path(word).is_dir()]
    places = [word for word in arguments if word not in given]
    flags = [word for word in places if word.startswith("-")]
    if flags or len(places) != 1:
        what = f"no such option: {flags[0]}" if flags else f"it takes one folder, got {', '.join(places) or 'none'}"
        raise UserError(f"report: {what}\npython -m glmexp report DIR, with {', '.join(KEYS)} as key=value")
    folder = Path(places[0])
    check_folder(folder)
    report = build(folder, plots=True, settings=chosen(read_settings(folder), given))
    print(*report.sentences, sep="\n")
    names = [CSV, MARKDOWN, HTML, *(path.name for path in drawn(folder)), *(n for n in ALL if (folder / n).is_file())]
    print(f"wrote {', '.join(names)} in {folder}")
    return 0


def check_folder(folder: Path) -> None:
    """Raises UserError for anything but a folder with the settings of a sweep or results of trials in it."""
    if not folder.is_dir():
        raise UserError(f"report: {folder} is {'no folder' if folder.exists() else 'not there'}\ngive the folder of a sweep")
    if (folder / SETTINGS).is_file() or any(folder.glob(f"*/{RESULT}")):
        return
    if (folder / RESULT).is_file():
        raise UserError(f"report: {folder} is a single trial\ngive the folder of its sweep: {folder.resolve().parent}")
    inside = {path.parent.parent for path in folder.glob(f"*/*/{RESULT}")}
    if not inside:
        hint = "give a folder that --multirun has made, as multirun/NAME"
        raise UserError(f"report: {folder} holds no trial of a sweep\n{hint}")
    newest = sorted(inside, key=_started, reverse=True)[:MOST_LISTED]
    which = "" if len(newest) == len(inside) else f"; the newest of {len(inside)}"
    raise UserError("\n".join((f"report: {folder} holds sweeps, give one of them{which}:", *map(str, newest))))


def _started(sweep: Path) -> float:
    """When its last session began, which has written the settings."""
    settings = sweep / SETTINGS
    return (settings if settings.is_file() else sweep).stat().st_mtime


def chosen(settings: Settings, given: Sequence[str]) -> Settings:
    """The settings with the overrides of the command line; raises UserError. A figure goes before a card's."""
    for word in sorted(given, key=lambda word: word.startswith("sweep.gpu_memory_gib=")):
        key, _, value = word.partition("=")
        if key == "sweep.objective" and value in list(Objective):
            settings = replace(settings, objective=Objective(value))
        elif key == "lang" and value in list(Language):
            settings = replace(settings, lang=Language(value))
        elif key == "sweep.gpu_memory_gib":
            settings = replace(settings, gpu_memory_gib=_gib(word, value))
        elif key == "hardware":
            settings = replace(settings, gpu_memory_gib=_of_card(word, value))
        else:
            raise UserError(_refusal(word, key))
    return settings


def _gib(word: str, value: str) -> float | None:
    if value == "null":
        return None
    try:
        gib = float(value)
    except ValueError:
        gib = 0.0
    if not 0 < gib < float("inf"):
        raise UserError(f"{word}: must be a number of GiB above 0, or null for the card at hand")
    return gib


def _of_card(word: str, name: str) -> float | None:
    """Memory of a card in ``conf/hardware``, in GiB; None for ``auto``, the card at hand."""
    folder = Path(conf_dir()) / "hardware"
    cards = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in cards:
        raise UserError(f"{word}: no such card, there are {', '.join(cards)}\nor give its memory: sweep.gpu_memory_gib=GIB")
    return number(OmegaConf.select(OmegaConf.load(folder / f"{name}.yaml"), "gpu_memory_gib"))


def _refusal(word: str, key: str) -> str:
    words = {"sweep.objective": [member.value for member in Objective], "lang": [member.value for member in Language]}
    if key in words:
        return f"{word}: must be {' or '.join(words[key])}"
    return f"{word}: report takes {', '.join(KEYS)} alone\nother settings were decided when the sweep ran"
