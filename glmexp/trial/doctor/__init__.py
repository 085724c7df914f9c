"""The ``doctor`` verb: what this machine can run, and what is in the way, a line a check."""

import importlib.metadata
import json
import os
import resource
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from glmexp.config.errors import UserError
from glmexp.track.wandb import has_key
from glmexp.trial import machine
from glmexp.trial.doctor import hardware, software, toolchain
from glmexp.trial.doctor.children import Facts, examine
from glmexp.trial.doctor.diagnosis import Diagnosis, Look, State, diagnose, first_line
from glmexp.trial.machine import Gpu, GpuUse
from glmexp.trial.redact import redact

USAGE = """python -m glmexp doctor [--json]

What this machine can run, and what is in the way: a line a check, and under a warning the next move. --json prints a list of
{check, state, finding, next}. Exit code 1 if something keeps every run, or every GPU run, from working."""
CHECK_SECONDS = 5.0
PROCESS_SECONDS = 40.0
"""How long the processes with torch may take; with the looks here before and after them it stays under a minute."""
WIDTH = 100
Checks = dict[str, Callable[[], Diagnosis]]
STYLES = {State.ok: "green", State.warn: "yellow", State.fail: "bold red"}


def main(arguments: Sequence[str]) -> int:
    """Prints a line a check, or with ``--json`` a list of {check, state, finding, next}; 1 if one fails, else 0.

    Raises:
        UserError: another argument.
    """
    if any(argument in ("--help", "-h") for argument in arguments):
        print(USAGE)
        return 0
    for argument in arguments:
        if argument != "--json":
            raise UserError(
                f"doctor {argument}: doctor looks at this machine, not at a configuration\nit takes nothing but --json"
            )
    if sys.stderr.isatty() and not arguments:
        print("looking at this machine, some seconds ...", file=sys.stderr)
    found = look(os.environ, Path.cwd())
    if arguments:
        print(json.dumps([{"check": name, **vars(line)} for name, line in found.items()], indent=2, ensure_ascii=False))
    else:
        console = Console(soft_wrap=True, highlight=False)
        with console.capture() as screen:
            for name, line in found.items():
                console.print(rendered(name, line))
        print(screen.get() + summary(found.values()))
    return 1 if any(line.state is State.fail for line in found.values()) else 0


def look(environ: Mapping[str, str], folder: Path) -> dict[str, Diagnosis]:
    """Check -> what it found, in the order of the screen; ``folder`` is where glmexp was called."""
    gpus, problem = _gpus(environ)
    uses = _uses(gpus)  # before our own processes are there
    try:
        facts = examine(gpus, environ, PROCESS_SECONDS)
    except OSError as error:  # no room for the temporary folder, no memory for a process
        facts = Facts({}, [None], f"no process could be started: {first_line(error)}", "gpu" if gpus else "cpu")
    checks = {
        **_software(environ, folder, facts),
        **_devices(facts, gpus, problem, uses),
        **_toolchain(environ, facts, gpus),
        **_resources(facts, len(gpus)),
        **_places(environ, folder, facts),
    }
    found = diagnose(checks, CHECK_SECONDS)
    return {
        name: Diagnosis(line.state, redact(line.finding, environ), line.next and redact(line.next, environ))
        for name, line in found.items()
    }


def _software(environ: Mapping[str, str], folder: Path, facts: Facts) -> Checks:
    def package(name: str) -> Callable[[], Diagnosis]:
        return lambda: software.package(name, _version(name), facts["imports"][name])

    return {
        "python": lambda: software.python(sys.version_info[:3], sys.executable),
        "shadowing": lambda: software.shadowing(folder, environ.get("PYTHONPATH", ""), "PYTHONSAFEPATH" in environ),
        **{name: package(name) for name in software.BOUNDS},
        "launcher": lambda: software.launcher(environ),
    }


def _devices(facts: Facts, gpus: Sequence[Gpu], problem: str | None, uses: Sequence[GpuUse | None]) -> Checks:
    return {
        "cuda": lambda: software.cuda(facts["torch"], gpus, problem),
        **{f"gpu {index}": partial(hardware.gpu, *pair) for index, pair in enumerate(zip(gpus, uses, strict=True))},
        **({"gpu to gpu": lambda: hardware.peers(facts["torch"]["without_peer_access"], len(gpus))} if len(gpus) > 1 else {}),
        "loopback": lambda: hardware.loopback(machine.loopback_answers()),
        "all-reduce": lambda: hardware.collective(facts.ranks, facts.trouble, facts.device),
    }


def _toolchain(environ: Mapping[str, str], facts: Facts, gpus: Sequence[Gpu]) -> Checks:
    def obstacle() -> str | None:
        return toolchain.obstacle(facts["compiler"], facts["ninja"])

    return {
        "compiler": lambda: toolchain.compiler(facts["compiler"]),
        "ninja": lambda: toolchain.ninja(facts["ninja"]),
        "nvcc": lambda: toolchain.nvcc(facts["nvcc"]["home"], facts["nvcc"]["release"], facts["torch"]["cuda"]),
        "arch list": lambda: toolchain.architectures(environ.get("TORCH_CUDA_ARCH_LIST"), gpus),
        "cpu adam": lambda: toolchain.cpu_adam(facts["compiled"]["cpu_adam"], obstacle()),
        "async i/o": lambda: toolchain.async_io(facts["compiled"]["async_io"], obstacle()),
        "build locks": lambda: toolchain.locks(facts["compiled"]["locks"]),
        "op cache": lambda: hardware.extension_cache(hardware.space(Path(facts["compiled"]["root"]))),
    }


def _resources(facts: Facts, gpus: int) -> Checks:
    def host_memory() -> Diagnosis:
        meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
        return hardware.host_memory(machine.host_memory_gib(), hardware.available_gib(meminfo))

    def pinned_memory() -> Diagnosis:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        limit = hardware.lockable(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], status)
        nvme_possible = facts.error("compiled") is None and facts["compiled"]["async_io"]["missing"] is None
        return hardware.pinned_memory(limit, facts.error("pinned"), gpus, nvme_possible)

    return {
        "host memory": host_memory,
        "shared memory": lambda: hardware.shared_memory(hardware.space(Path("/dev/shm")), gpus),
        "pinned memory": pinned_memory,
        "open files": lambda: hardware.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }


def _places(environ: Mapping[str, str], folder: Path, facts: Facts) -> Checks:
    return {
        "nvme": hardware.nvme,
        "outputs": lambda: hardware.outputs(hardware.space(folder / "outputs")),
        "hugging face": lambda: software.hub(environ, hardware.space(software.hub_cache(environ))),
        "wandb": lambda: software.wandb(_version("wandb"), has_key(environ), environ.get("WANDB_MODE")),
    }


def _gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    try:
        return Look(lambda: machine.visible_gpus(environ)).result(CHECK_SECONDS)
    except Exception as error:
        return (), f"NVML: {first_line(error)}"


def _uses(gpus: Sequence[Gpu]) -> Sequence[GpuUse | None]:
    try:
        return Look(lambda: [machine.gpu_use(gpu) for gpu in gpus]).result(CHECK_SECONDS)
    except Exception:
        return [None] * len(gpus)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def rendered(name: str, line: Diagnosis) -> Text:
    """``ok    torch          2.13.0`` and below a warning its next move, in lines of at most 100 columns; paths stay whole."""
    text = Text(style="")
    for part, begin in ((line.finding, f"{line.state.value:<6}{name:<15}"), (line.next, f"{'':<6}{'':<15}-> ")):
        if part:
            wrapped = textwrap.wrap(part, WIDTH - len(begin), break_long_words=False, break_on_hyphens=False)
            text.append("\n" if text.plain else "").append(begin).append(f"\n{'':<{len(begin)}}".join(wrapped))
    text.stylize(STYLES[line.state], 0, len(line.state.value))
    return text


def summary(found: Iterable[Diagnosis]) -> str:
    counts = {state: sum(line.state is state for line in found) for state in State}
    return ", ".join(f"{count} {state.value}" for state, count in counts.items())
