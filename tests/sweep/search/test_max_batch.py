"""The largest micro batch that fits, found by bisection at a constant global batch."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.config.choices import Order, Search
from glmexp.config.errors import UserError
from glmexp.sweep.search import select
from glmexp.sweep.search.max_batch import MaxBatch, divisors
from glmexp.trial.record import State
from tests.sweep.search.fakes import base, config_with, drive, make_job, make_result


def cell(number=0, total=64, ranks=1, **changes):
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return make_job(number, {"batch.total": total, **dotted}, ranks=ranks)


def vary(job, micro):
    config = job.composed.config
    varied = replace(config, batch=replace(config.batch, micro=micro, accumulation=None))
    return replace(job, composed=replace(job.composed, config=varied), config_hash=f"{job.config_hash[:6]}{micro:02d}00000000")


def micro_of(job):
    return job.composed.config.batch.micro


def up_to(limits, beyond=State.oom):
    """A machine where a stage takes micro batches up to its limit."""
    return lambda job: make_result(State.complete if micro_of(job) <= limits[job.composed.config.zero.stage] else beyond)


@settings(max_examples=60, deadline=None)
@given(total=st.sampled_from([1, 2, 12, 60, 64, 97, 1000]), ranks=st.sampled_from([1, 2, 4]), data=st.data())
def test_the_largest_that_fits_is_found_in_log2_trials(total, ranks, data):
    total *= ranks
    limit = data.draw(st.integers(0, total))
    search = MaxBatch([cell(total=total, ranks=ranks)], vary)
    ran, _ = drive(search, up_to({2: limit}))
    candidates = divisors(total // ranks)
    assert len(ran) <= math.floor(math.log2(len(candidates))) + 1
    best = max((micro for micro in candidates if micro <= limit), default=None)
    complete = [micro_of(job) for job, result in ran if result.state is State.complete]
    assert max(complete, default=None) == best
    assert all(job.composed.config.batch.total == total for job, _ in ran)
    wanted = f"batch.micro={best} is the largest that fits" if best else "none fits"
    assert wanted in search.summary()[0]


def test_ranks_that_share_samples_count_as_one():
    search = MaxBatch([cell(total=8, ranks=4, zero__stage=3, comm__sequence_parallel_size=2)], vary)
    ran, _ = drive(search, up_to({3: 8}))
    assert max(micro_of(job) for job, _ in ran) == 4


def test_each_cell_has_its_own_and_they_run_side_by_side():
    cells = [cell(number, 64, zero__stage=stage) for number, stage in enumerate((1, 2, 3))]
    search = MaxBatch(cells, vary)
    first = [search.ask() for _ in range(3)]
    assert [job.composed.config.zero.stage for job in first] == [1, 2, 3]
    assert search.ask() is None  # one trial a cell at a time
    assert not search.done
    for job in reversed(first):
        search.tell(job, up_to({1: 4, 2: 16, 3: 64})(job))
    drive(search, up_to({1: 4, 2: 16, 3: 64}), slots=2, pick=lambda running: len(running) - 1)
    found = [line.partition(": ")[2].partition(" ")[0] for line in search.summary()]
    assert found == ["batch.micro=4", "batch.micro=16", "batch.micro=64"]
    assert "batch.micro=8 runs out of GPU memory" in search.summary()[0]


def test_another_end_ends_the_cell_with_what_it_has():
    states = {8: State.complete, 32: State.killed}
    search = MaxBatch([cell()], vary)
    ran, _ = drive(search, lambda job: make_result(states[micro_of(job)]))
    assert [micro_of(job) for job, _ in ran] == [8, 32]
    (line,) = search.summary()
    assert "batch.micro=8 is the largest that fits" in line
    assert "the search ended at batch.micro=32, which was killed" in line


def test_a_search_that_was_stopped_says_what_is_open():
    search = MaxBatch([cell()], vary)
    assert "none fits so far, 1, 2, 4, 8, 16, 32, 64 not decided" in search.summary()[0]
    job = search.ask()
    search.tell(job, make_result())
    assert "batch.micro=8 fits so far, 16, 32, 64 not decided" in search.summary()[0]


def test_what_a_rule_refuses_is_left_out():
    def choosy(job, micro):
        if micro not in (4, 16):
            raise UserError(f"offload.zenflow.update_interval is not {64 // micro}\nchange it")
        return vary(job, micro)

    search = MaxBatch([cell()], choosy)
    ran, _ = drive(search, up_to({2: 64}))
    assert "batch.micro=16 is the largest that fits" in search.summary()[0]
    assert "is refused: offload.zenflow.update_interval" in search.summary()[0]
    assert {micro_of(job) for job, _ in ran} <= {4, 16}


def test_a_cell_with_all_refused_ends():
    def refuse(job, micro):
        raise UserError("no")

    search = MaxBatch([cell()], refuse)
    assert search.ask() is None
    assert search.done
    assert "none fits" in search.summary()[0]


def test_pruning_between_cells_counts_as_too_large(tmp_path):
    settings = replace(base().sweep, search=Search.max_batch, order=Order.cheap_first)
    cells = [cell(0, 64, data__max_length=256), cell(1, 64, data__max_length=512)]
    search = select(settings, cells, vary, tmp_path)
    tokens = lambda job: micro_of(job) * job.composed.config.data.max_length  # noqa: E731
    ran, skipped = drive(search, lambda job: make_result(State.complete if tokens(job) <= 1024 else State.oom))
    assert [line.partition(": ")[2].partition(" ")[0] for line in search.summary()] == ["batch.micro=4", "batch.micro=2"]
    assert {micro_of(skip.job) for skip in skipped} == {8}
    assert all(tokens(skip.job) > 1024 for skip in skipped)
    assert len(ran) == 5


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([make_job(0, {})], ("batch.total is not set", "add batch.total=")),
        ([cell(batch__accumulation=4, total=8)], ("batch.accumulation=4", "leave batch.accumulation out")),
        ([cell(0, batch__micro=1), cell(1, batch__micro=2)], ("batch.micro=1,2", "sweep.search=grid")),
    ],
)
def test_what_leaves_nothing_to_search_is_refused(jobs, words, tmp_path):
    with pytest.raises(UserError) as refused:
        select(replace(config_with({}).sweep, search=Search.max_batch), jobs, vary, tmp_path)
    assert all(word in str(refused.value) for word in words)
    assert len(str(refused.value).splitlines()) == 2


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
