"""``python -m glmexp lint FILE``: what is wrong with a DeepSpeed config, any project's."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from glmexp.config.errors import USER_ERROR, UserError, nearest
from glmexp.dsconfig.allow import NAME as ALLOW
from glmexp.dsconfig.allow import allowed, let_through
from glmexp.dsconfig.findings import Finding, Kind, Severity, Situation, printable
from glmexp.dsconfig.json_file import read
from glmexp.dsconfig.lint import known_version, lint

HELP = """usage: python -m glmexp lint FILE [--json] [--for deepspeed|hf] [--world-size N] [--device gpu|cpu]
                                  [lint.allow=[KEY,...]]

Says what is wrong with a DeepSpeed JSON config, of any project. FILE may be - for standard input.

  --json            a JSON list of {key, kind, severity, message} on standard output, and nothing else
  --for READER      who reads the file: deepspeed (default), or hf, the Hugging Face Trainer, which fills in "auto"
  --world-size N    ranks of the run, for the batch arithmetic
  --device DEVICE   gpu (default) or cpu
  lint.allow=[KEY]  keys that are unknown here, and right all the same

Severities: error, what is asked for and will not happen or breaks the run; warning, what takes effect and is dangerous or
costly; info, what this DeepSpeed never uses or a launcher fills in. Exits with 2 if there is an error, else with 0."""

WITH_VALUE = ("--for", "--world-size", "--device")
FLAGS = ("--json", "--help", "-h", *WITH_VALUE)
READERS = ("deepspeed", "hf")


@dataclass(frozen=True)
class Arguments:
    path: str
    as_json: bool
    situation: Situation
    allow: Sequence[str]
    """Keys that may be unknown."""


def main(arguments: Sequence[str]) -> int:
    """Prints the findings and returns the exit code; raises UserError for wrong arguments or an unreadable file."""
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0 if arguments else USER_ERROR
    asked = parse(arguments)
    file = read(asked.path, asked.situation.reader)
    found = let_through(lint(file.config, asked.situation), asked.allow)
    if asked.as_json:
        print(json.dumps([_record(finding) for finding in found], indent=2))
    else:
        for finding in sorted(found, key=lambda finding: list(Severity).index(finding.severity)):
            print(f"{finding.severity.value:<7}  {printable(finding.key)}  {finding.message} [{finding.kind.value}]")
        print(summary(found))
        if hint := _another_reader(found, asked.situation):
            print(hint)
    described, installed = known_version()
    if installed not in (described, None):
        print(f"note: these are the rules of DeepSpeed {described}; {installed} is installed here", file=sys.stderr)
    if file.note:
        print(f"note: {file.note}", file=sys.stderr)
    return USER_ERROR if any(finding.severity is Severity.error for finding in found) else 0


def parse(arguments: Sequence[str]) -> Arguments:
    """The command line as typed; raises UserError."""
    allow = [word for word in arguments if word.startswith(f"{ALLOW}=")]
    paths, values = [], {}
    waiting = iter([word for word in arguments if word not in allow])
    for word in waiting:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in WITH_VALUE:
            given = value if equals else next(waiting, None)
            if given is None:
                raise UserError(f"{name} needs a value\npython -m glmexp lint --help lists the options")
            values[name] = given
        elif word == "--json":
            values[word] = ""
        elif word.startswith("-") and word != "-":
            close = f"--for {name[2:]}" if name[2:] in READERS else nearest(name, FLAGS)
            raise UserError(
                f"lint {word}: no such option" + (f"; did you mean {close}?" if close else f"; there are {', '.join(FLAGS)}")
            )
        else:
            paths.append(word)
    if len(paths) != 1:
        what = f"got {', '.join(paths)}" if paths else "got none"
        raise UserError(f"lint takes one file, {what}\npython -m glmexp lint FILE, or - for standard input")
    reader = _one_of("--for", values.get("--for", "deepspeed"), READERS)
    device = _one_of("--device", values["--device"], ("gpu", "cpu")) if "--device" in values else None
    situation = Situation(
        reader=cast(Literal["deepspeed", "hf"], reader),
        world_size=_ranks(values["--world-size"]) if "--world-size" in values else None,
        device=cast(Literal["gpu", "cpu"] | None, device),
    )
    return Arguments(paths[0], "--json" in values, situation, allowed(allow))


def _one_of(option: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UserError(f"{option} {value}: must be {' or '.join(known)}")
    return value


def _ranks(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or int(value) < 1:
        raise UserError(f"--world-size {value}: must be a whole number of ranks, at least 1")
    return int(value)


def _another_reader(found: Sequence[Finding], situation: Situation) -> str | None:
    """A word to whoever lints a file of the Trainer's as DeepSpeed reads it."""
    count = sum(finding.kind is Kind.auto and finding.severity is Severity.error for finding in found)
    if not count or situation.reader == "hf":
        return None
    what = "1 value is" if count == 1 else f"{count} values are"
    return f'{what} "auto": if the HF Trainer or accelerate reads this file, lint it with --for hf'


def _record(finding: Finding) -> dict[str, str]:
    return {
        "key": finding.key,
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "message": finding.message,
    }


def summary(found: Sequence[Finding]) -> str:
    """``2 errors, 1 warning``, or ``no findings``."""
    counts = Counter(finding.severity for finding in found)
    words = {Severity.error: ("error", "errors"), Severity.warning: ("warning", "warnings"), Severity.info: ("info", "infos")}
    parts = [f"{counts[one]} {words[one][counts[one] > 1]}" for one in Severity if counts[one]]
    return ", ".join(parts) or "no findings"
