"""The classification, row by row: what is known -> state and words."""

import pytest

from glmexp.trial.outcome import Evidence, classify
from glmexp.trial.processes import Ending
from glmexp.trial.record import Phase, RankRecord, State

PEER = "training, step 3: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"


def record(rank, outcome=None, error=None, updated=1.0, phase=Phase.training):
    return RankRecord(rank, pid=1, phase=phase, done=3, total=10, updated=updated, outcome=outcome, error=error)


def said(*outcomes):
    """A record a rank: (state, error) or None for a rank that has told nothing."""
    return [record(rank, *(told or (None,)), updated=rank) for rank, told in enumerate(outcomes)]


LOST_SERVER = "the server that ranks are forked from (sweep.warm_start)"
DONE = (State.complete,)
FAILED = (State.failed, "training, step 3: ValueError: bad shape")
LOST = (State.failed, PEER)
OOM = (State.oom, "out of GPU memory (training, step 3)")

ROWS = [
    # exit codes, records, more evidence -> state, words of the reason
    ([0, 0], [DONE, DONE], {}, State.complete, ""),
    ([0, -11], [DONE, DONE], {}, State.complete, "rank 1 ended by SIGSEGV"),
    ([0, 0], [DONE, None], {}, State.failed, "exit code 0, but rank 1 has not told how it ended"),
    ([0], [], {}, State.failed, "exit code 0, but rank 0 has not told how it ended; no rank had started"),
    # Our own stop explains everything that follows from it.
    ([None, 1], [None, OOM], {"stop": State.timeout, "timeout_minutes": 0.5}, State.timeout, "launch.timeout_minutes=0.5"),
    (
        [None],
        [None],
        {"stop": State.timeout, "hung": True, "hang_minutes": 30},
        State.timeout,
        "no progress for 30 minutes (la",
    ),
    (
        [None, None],
        [None, LOST],
        {"stop": State.interrupted, "signal_number": 2},
        State.interrupted,
        "ended by SIGINT; last phase: training 3 of 10",
    ),
    # A cause beats an echo, whichever rank is first.
    ([1, 1], [LOST, OOM], {}, State.oom, "rank 1: out of GPU memory"),
    ([1, 1], [FAILED, OOM], {}, State.oom, "rank 1: out of GPU memory"),
    ([1, 1], [LOST, FAILED], {}, State.failed, "rank 1: training, step 3: ValueError"),
    ([1, 1], [(State.failed, "TypeError: first"), FAILED], {}, State.failed, "rank 0: TypeError: first"),
    ([1, 1], [(State.oom_host, "out of host memory"), LOST], {}, State.oom_host, "rank 0: out of host memory"),
    ([1, None], [(State.invalid, "data.path: absent.jsonl is not there"), None], {}, State.invalid, "data.path: absent"),
    ([1, 1], [(State.diverged, "loss is nan at step 4"), LOST], {}, State.diverged, "rank 0: loss is nan"),
    ([1], [FAILED], {}, State.failed, "training, step 3: ValueError: bad shape"),
    ([1, 1], [LOST, LOST], {}, State.failed, "Connection closed by peer"),
    (
        [1],
        [(State.failed, "building: EADDRINUSE")],
        {"port": "port 7, set by x"},
        State.failed,
        "EADDRINUSE (port 7, set by x)",
    ),
    # A rank that a signal ended could say nothing: its peers' words are echoes, even odd ones.
    ([1, -9], [LOST, None], {}, State.killed, "rank 1 was killed by SIGKILL, most likely out of host memory"),
    ([1, -9], [FAILED, None], {"oom_kills": 1}, State.oom_host, "rank 1 was ended by the kernel for lack of host memory"),
    ([1, -11], [FAILED, None], {}, State.failed, "rank 1 ended by SIGSEGV; last phase: training 3 of 10"),
    ([-15], [None], {}, State.killed, "SIGTERM from outside"),
    # Nobody told anything: the log has to.
    (
        [1],
        [None],
        {"log": "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\ny"},
        State.oom,
        "torch.OutOfMemoryError: CUDA",
    ),
    ([1], [None], {"log": "RuntimeError: DefaultCPUAllocator: can't allocate memory"}, State.oom_host, "DefaultCPUAllocator"),
    (
        [-9],
        [None],
        {"log": f"x\n{LOST_SERVER} was ended by SIGKILL\n"},
        State.killed,
        f"{LOST_SERVER} was ended by SIGKILL; last",
    ),
    ([-9], [None], {"log": f"{LOST_SERVER} was ended by SIGKILL", "oom_kills": 1}, State.oom_host, "lack of host memory"),
    ([-9], [None], {"log": "CUDA out of memory"}, State.oom, "CUDA out of memory"),
    (
        [1],
        [None],
        {"log": "DistNetworkError: EADDRINUSE", "port": "port 7, set by x"},
        State.failed,
        "EADDRINUSE (port 7, set by x)",
    ),
    ([-6], [None], {"log": "Watchdog caught collective operation timeout: x"}, State.failed, "Watchdog caught collective"),
    (
        [1],
        [],
        {"log": "Traceback\n  File\nModuleNotFoundError: No module named 'x'"},
        State.failed,
        "rank 0 exit code 1; ModuleNotFoundError",
    ),
    ([3], [None], {}, State.failed, "rank 0 exit code 3; last phase: training 3 of 10"),
]


@pytest.mark.parametrize(("codes", "records", "more", "state", "words"), ROWS)
def test_direct_ranks(codes, records, more, state, words):
    known = dict(more)
    ending = Ending(dict(enumerate(codes)), known.pop("stop", None), known.pop("signal_number", None), known.pop("hung", False))
    found, reason = classify(Evidence(ending, range(len(codes)), said(*records), **known))
    assert found is state, reason
    assert words in reason
    assert (reason == "") == (words == "")


@pytest.mark.parametrize(
    ("code", "records", "log", "oom_kills", "state", "words"),
    [
        (1, [LOST, None], "  exitcode  : -9 (pid: 77)", 0, State.killed, "SIGKILL"),
        (247, [LOST, None], "exits with return code = -9", 2, State.oom_host, "lack of host memory"),
        (245, [None, None], "exits with return code = -11", 0, State.failed, "a rank was ended by SIGSEGV"),
        (1, [OOM, None], "  exitcode  : -15 (pid: 77)", 0, State.oom, "rank 0: out of GPU memory"),
        (
            1,
            [],
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            0,
            State.failed,
            "the launcher: exit code 1",
        ),
    ],
)
def test_ranks_behind_an_inner_launcher(code, records, log, oom_kills, state, words):
    found, reason = classify(Evidence(Ending({None: code}, None, None), range(2), said(*records), log, oom_kills))
    assert found is state
    assert words in reason
    assert "ChildFailedError" not in reason


def test_the_ranks_of_a_further_node_are_named():
    evidence = Evidence(Ending({2: 1}, None, None), range(2, 3), [record(2, State.oom, "out of GPU memory")])
    assert classify(evidence) == (State.oom, "rank 2: out of GPU memory")
