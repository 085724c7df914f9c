"""How a run ended, from all that is known of it: a pure function over codes, records and the log's end."""

import re
import signal
from dataclasses import dataclass

from glmexp.trial.processes import Ending
from glmexp.trial.record import Phase, RankRecord, State
from glmexp.trial.warm import SERVER_LOST

OOM = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED"
)
OOM_HOST = re.compile(
    r"^MemoryError\b|Cannot allocate memory|can't allocate memory|DefaultCPUAllocator"
    r"|cudaHostAlloc|\[Errno 12\]|std::bad_alloc",
    re.MULTILINE,
)
PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
COLLECTIVE = re.compile(
    r"Watchdog caught collective operation timeout|NCCL (?:timeout|error)|ncclInternalError|ncclSystemError"
)
PEER_LOST = re.compile(
    r"[Cc]onnection (?:closed|reset|refused)|[Bb]roken pipe|ncclRemoteError|[Ss]ocket ?[Tt]imeout|Gloo|gloo|Timed out waiting"
)
"""What a healthy rank says when another one is gone: never the cause if somebody else gives one."""
EXCEPTION = re.compile(r"^(?!.*ChildFailedError)(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*$", re.MULTILINE)
"""The last line of a traceback; torchrun's own says nothing of the cause."""
INNER_SIGNAL = re.compile(r"exitcode\s*:\s*-(\d+)|return code = -(\d+)")
"""How torchrun and the deepspeed launcher tell the signal that ended a rank."""

FORCED = (State.oom, State.oom_host, State.invalid, State.diverged)
"""What a rank can say that explains the run, the strongest first; ``failed`` may only be an echo of another rank's end."""


@dataclass(frozen=True)
class Evidence:
    ending: Ending
    ranks: range
    """The ranks of this node."""
    records: list[RankRecord]
    log: str = ""
    """The end of train.log."""
    oom_kills: int = 0
    """Processes that the kernel ended for lack of memory while the run was going on."""
    timeout_minutes: float | None = None
    hang_minutes: float | None = None
    port: str = ""
    """Where the rendezvous port comes from, for the message that it is taken."""


def classify(evidence: Evidence) -> tuple[State, str]:
    """State and reason. What we did ourselves goes before what ranks said, then the log's patterns, then signals.

    The reason is empty for a run that is complete and went well.
    """
    return _stopped(evidence) or _finished(evidence) or _told(evidence) or _silent(evidence)


def _stopped(evidence: Evidence) -> tuple[State, str] | None:
    stop = evidence.ending.stop
    if stop is None:
        return None
    # What a rank saved before it ended by itself, as it was asked to, says more than how far it had come.
    last_words = [record.error for record in evidence.records if record.outcome is State.interrupted and record.error]
    where = last_words[0].rpartition("; ")[2] if last_words else _progress(evidence.records)
    if evidence.ending.hung:
        return stop, f"no progress for {evidence.hang_minutes:g} minutes (launch.hang_minutes); {where}"
    if stop is State.timeout:
        return stop, f"took longer than launch.timeout_minutes={evidence.timeout_minutes:g}; {where}"
    number = evidence.ending.signal_number
    return stop, f"ended by {signal.Signals(number).name if number else 'a request'}; {where}"


def _finished(evidence: Evidence) -> tuple[State, str] | None:
    """Complete is what every rank says of itself, whatever happens to its process afterwards."""
    outcomes = {record.rank: record.outcome for record in evidence.records}
    if any(outcomes.get(rank) is not State.complete for rank in evidence.ranks):
        return None
    odd = [f"rank {rank} {_ended(code)}" for rank, code in evidence.ending.codes.items() if rank is not None and code]
    early = next((record.early for record in evidence.records if record.early), "")
    return State.complete, f"all ranks had finished; afterwards {', '.join(odd)}" if odd else early


def _told(evidence: Evidence) -> tuple[State, str] | None:
    """A rank's own words, unless they are only about having lost another rank."""
    for state in FORCED:
        for record in evidence.records:
            if record.outcome is state:
                return state, _said(record, evidence)
    failed = [record for record in evidence.records if record.outcome not in (None, State.complete)]
    causes = [record for record in failed if not PEER_LOST.search(record.error or "")]
    if not causes or _died_silently(evidence):
        return None
    first = min(causes, key=lambda record: record.updated)
    outcome = first.outcome
    assert outcome is not None
    return outcome, _said(first, evidence)


def _died_silently(evidence: Evidence) -> bool:
    """Whether a signal ended a rank that had told nothing: then what its peers met is the consequence."""
    told = {record.rank for record in evidence.records if record.outcome is not None}
    return any(
        code is not None and code < 0 and rank not in told for rank, code in evidence.ending.codes.items() if rank is not None
    )


def _said(record: RankRecord, evidence: Evidence) -> str:
    error = record.error or "gave no reason"
    if record.outcome is State.failed and PORT_TAKEN.search(error):
        error = f"{error} ({evidence.port})" if evidence.port else error
    alone = len(evidence.ranks) == 1 and evidence.ranks[0] == 0
    return error if alone or record.outcome is State.invalid else f"rank {record.rank}: {error}"


def _silent(evidence: Evidence) -> tuple[State, str]:
    """No rank has told the cause: the log and the exit codes have to."""
    return (
        _logged(evidence, (State.oom, OOM), (State.oom_host, OOM_HOST))
        or _killed(evidence)
        or _logged(evidence, (State.failed, PORT_TAKEN), (State.failed, COLLECTIVE))
        or (State.failed, _unexplained(evidence))
    )


def _logged(evidence: Evidence, *patterns: tuple[State, re.Pattern[str]]) -> tuple[State, str] | None:
    for state, pattern in patterns:
        if found := pattern.search(evidence.log):
            line = _line(evidence.log, found.start())
            return state, f"{line} ({evidence.port})" if pattern is PORT_TAKEN and evidence.port else line
    return None


def _unexplained(evidence: Evidence) -> str:
    """The best words there are for a failure that nobody has explained."""
    ended = [
        f"rank {rank} {_ended(code)}" if rank is not None else f"the launcher: {_ended(code)}"
        for rank, code in evidence.ending.codes.items()
        if code
    ]
    ended.sort(key=lambda words: " by SIG" not in words)
    ended = [f"a rank was ended by {signal_name(-number)}" for number in _inner_signals(evidence.log)] or ended
    if _died_silently(evidence):
        return f"{ended[0]}; {_progress(evidence.records)}"
    echoes = [_said(record, evidence) for record in evidence.records if record.outcome not in (None, State.complete)]
    exceptions = [line[:300] for line in EXCEPTION.findall(evidence.log)]
    if words := [*ended[:1], *(echoes[:1] or exceptions[-1:])]:
        return "; ".join([*words, _progress(evidence.records)])
    records = {record.rank: record for record in evidence.records}
    silent = [rank for rank in evidence.ranks if rank not in records or records[rank].outcome is None]
    return f"exit code 0, but rank {silent[0]} has not told how it ended; {_progress(evidence.records)}"


def _killed(evidence: Evidence) -> tuple[State, str] | None:
    """SIGKILL and SIGTERM from outside: we send neither before the codes are taken."""
    numbers = {rank: -code for rank, code in evidence.ending.codes.items() if code is not None and code < 0}
    inner = _inner_signals(evidence.log) if None in evidence.ending.codes else []
    who = next((f"rank {rank}" for rank, number in numbers.items() if rank is not None and number == signal.SIGKILL), "a rank")
    where = _progress(evidence.records)
    if signal.SIGKILL in (*numbers.values(), *inner):
        if evidence.oom_kills:
            return State.oom_host, f"{who} was ended by the kernel for lack of host memory; {where}"
        if lost := SERVER_LOST.search(evidence.log):
            return State.killed, f"{lost[0]}; {where}"
        return State.killed, f"{who} was killed by SIGKILL, most likely out of host memory; {where}"
    if signal.SIGTERM in (*numbers.values(), *inner):
        return State.killed, f"a rank was ended by SIGTERM from outside; {where}"
    return None


def _inner_signals(log: str) -> list[int]:
    return [int(one or other) for one, other in INNER_SIGNAL.findall(log)]


def _ended(code: int | None) -> str:
    if code is None:
        return "had to be ended"
    return f"ended by {signal_name(code)}" if code < 0 else f"exit code {code}"


def signal_name(code: int) -> str:
    """The name behind a negative exit code: -11 is SIGSEGV."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _progress(records: list[RankRecord]) -> str:
    """How far the slowest rank had come, in words."""
    if not records:
        return "no rank had started"
    slowest = min(records, key=lambda record: (list(Phase).index(record.phase), record.done))
    share = f" {slowest.done} of {slowest.total}" if slowest.total else ""
    return f"last phase: {slowest.phase.value}{share}"


def _line(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else None].strip()[:300]
