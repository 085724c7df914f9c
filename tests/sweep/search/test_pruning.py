"""What must run out of memory is skipped, and nothing that might fit is."""

import itertools

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from glmexp.config.choices import Dtype, Method, OffloadDevice, Source, Task
from glmexp.sweep.search.cost import cheap_first, demand
from glmexp.sweep.search.grid import Grid
from glmexp.sweep.search.pruning import Pruned, gpu_need
from glmexp.trial.record import State
from tests.sweep.search.fakes import drive, make_job, make_result


def skipped_after(state, earlier, later, slots=1, device="gpu", ranks=1):
    """The reason that ``later`` is skipped for, once ``earlier`` (changes of the configuration both) has ended so."""
    first, second = (make_job(number, changes, device, ranks) for number, changes in enumerate((earlier, later)))
    search = Pruned(Grid([first, second]), slots)
    assert search.ask() is first
    search.tell(first, make_result(state))
    step = search.ask()
    return None if step is second else step.reason


MORE = {
    "larger micro batch": ({"batch.micro": 2}, {"batch.micro": 8}),
    "larger micro batch at a constant total": (
        {"batch.micro": 2, "batch.total": 16},
        {"batch.micro": 4, "batch.total": 16},
    ),
    "gradients kept between two forward passes": (
        {"batch.micro": 2, "batch.accumulation": 1},
        {"batch.micro": 2, "batch.accumulation": 4},
    ),
    "longer samples": ({"data.max_length": 128}, {"data.max_length": 256}),
    "no checkpointing": ({"activation.checkpoint": True}, {"activation.checkpoint": False}),
    "larger rank": ({"method.name": Method.lora, "method.rank": 8}, {"method.name": Method.lora, "method.rank": 16}),
    "more layers": (
        {"method.name": Method.freeze, "method.last_layers": 2},
        {"method.name": Method.freeze, "method.last_layers": 4},
    ),
    "two at once": (
        {"batch.micro": 2, "activation.checkpoint": True},
        {"batch.micro": 4, "activation.checkpoint": False},
    ),
    "the tracker and limits of time": (
        {"batch.micro": 2},
        {"batch.micro": 4, "tracker.project": "other", "launch.timeout_minutes": 3.0},
    ),
}
NOT_CERTAIN = {
    "smaller micro batch": ({"batch.micro": 8}, {"batch.micro": 2}),
    "one knob up, another down": (
        {"batch.micro": 2, "activation.checkpoint": False},
        {"batch.micro": 4, "activation.checkpoint": True},
    ),
    "no gradients are kept any more": ({"batch.micro": 2, "batch.total": 8}, {"batch.micro": 8, "batch.total": 8}),
    "lower stage": ({"zero.stage": 3}, {"zero.stage": 1}),
    "full after lora": ({"method.name": Method.lora}, {"method.name": Method.full}),
    "fp32 after bf16": ({"precision.dtype": Dtype.bf16}, {"precision.dtype": Dtype.fp32}),
    "less offload": ({"offload.device": OffloadDevice.cpu}, {"offload.device": OffloadDevice.none}),
    "another learning rate and a larger bucket": ({"zero.reduce_bucket_size": 1e7}, {"zero.reduce_bucket_size": 1e8}),
    "longer limit for samples of any length": (
        {"task": Task.train, "data.source": Source.file, "data.max_length": 128},
        {"task": Task.train, "data.source": Source.file, "data.max_length": 256},
    ),
    "DeepCompile decides what is kept": (
        {"kernels.deepcompile": True, "activation.checkpoint": True},
        {"kernels.deepcompile": True, "activation.checkpoint": False},
    ),
}


@pytest.mark.parametrize("case", MORE)
def test_more_is_skipped(case):
    assert skipped_after(State.oom, *MORE[case])


@pytest.mark.parametrize("case", NOT_CERTAIN)
def test_what_may_fit_is_not_skipped(case):
    assert skipped_after(State.oom, *NOT_CERTAIN[case]) is None


@pytest.mark.parametrize("state", [state for state in State if state not in (State.oom, State.oom_host)])
def test_no_other_end_skips_anything(state):
    assert skipped_after(state, *MORE["larger micro batch"]) is None


def test_ranks_must_be_equal():
    first, second = make_job(0, {"batch.micro": 2}, ranks=1), make_job(1, {"batch.micro": 4}, ranks=2)
    search = Pruned(Grid([first, second]), 1)
    search.tell(search.ask(), make_result(State.oom))
    assert search.ask() is second


def test_the_reason_names_the_trial_and_what_it_had():
    reason = skipped_after(State.oom, {"batch.micro": 4}, {"batch.micro": 8})
    assert reason.startswith("batch.micro=4 ran out of GPU memory with all else equal (trial micro-4-")


def test_at_a_constant_total_the_accumulation_is_not_told_of():
    reason = skipped_after(State.oom, *MORE["larger micro batch at a constant total"])
    assert reason.startswith("batch.micro=2 ran out")


def test_host_memory_beside_a_gpu_grows_with_what_is_offloaded():
    less = {"offload.device": OffloadDevice.cpu, "offload.parameters": False, "zero.stage": 3}
    assert skipped_after(State.oom_host, less, {**less, "offload.parameters": True})
    assert skipped_after(State.oom_host, {**less, "offload.parameters": True}, less) is None
    assert skipped_after(State.oom_host, *MORE["larger micro batch"]) is None  # which the host does not notice


def test_on_the_cpu_host_memory_is_what_training_takes():
    assert "ran out of host memory" in skipped_after(State.oom_host, *MORE["larger micro batch"], device="cpu")


def test_trials_side_by_side_share_the_host_memory():
    assert skipped_after(State.oom_host, *MORE["larger micro batch"], slots=2, device="cpu") is None
    assert skipped_after(State.oom, *MORE["larger micro batch"], slots=2)


def test_what_is_skipped_skips_further():
    jobs = [make_job(number, {"batch.micro": micro}) for number, micro in enumerate((1, 2, 4, 8))]
    limit = {1: State.complete, 2: State.oom}
    ran, skipped = drive(Pruned(Grid(jobs), 1), lambda job: make_result(limit[job.composed.config.batch.micro]))
    assert [job.composed.config.batch.micro for job, _ in ran] == [1, 2]
    assert [skip.job.composed.config.batch.micro for skip in skipped] == [4, 8]


grids = st.fixed_dictionaries(
    {
        "zero.stage": st.sampled_from([[2], [1, 3], [0, 1, 2, 3]]),
        "batch.micro": st.sampled_from([[1, 2], [2, 4, 8], [1, 4]]),
        "activation.checkpoint": st.sampled_from([[False], [True, False]]),
        "data.max_length": st.sampled_from([[128], [256, 128]]),
        "batch.accumulation": st.sampled_from([[None], [1, 2]]),
    }
)
totals = st.sampled_from([None, 8])


def jobs_of(grid, total):
    if total:
        grid = {**grid, "batch.accumulation": [None], "batch.total": [total]}
    return [
        make_job(number, dict(zip(grid, values, strict=True)))
        for number, values in enumerate(itertools.product(*grid.values()))
    ]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(grid=grids, total=totals, data=st.data())
def test_nothing_that_fits_is_skipped(grid, total, data):
    """On machines that differ in what pruning must not rely on: what a stage takes, the weight of activations and gradients."""
    stage_gib = data.draw(st.lists(st.integers(0, 40), min_size=4, max_size=4))
    token_gib = data.draw(st.floats(0.001, 0.02))
    kept_share = data.draw(st.floats(0.0, 1.0))
    gradients_gib = data.draw(st.integers(0, 30))
    room = data.draw(st.integers(1, 80))
    slots = data.draw(st.integers(1, 3))

    def fits(job):
        config = job.composed.config
        batch = config.batch
        accumulation = batch.total // batch.micro if batch.total else batch.accumulation or 1
        activations = batch.micro * config.data.max_length * token_gib * (kept_share if config.activation.checkpoint else 1)
        # Gradients appear while activations go, unless they are there from the forward pass before.
        peak = activations + gradients_gib if accumulation > 1 else max(activations, gradients_gib)
        return stage_gib[config.zero.stage] + peak <= room

    jobs = cheap_first(jobs_of(grid, total))
    ran, skipped = drive(
        Pruned(Grid(jobs), slots),
        lambda job: make_result(State.complete if fits(job) else State.oom),
        slots,
        lambda running: data.draw(st.integers(0, len(running) - 1)),
    )
    assert not [skip.job.name for skip in skipped if fits(skip.job)]
    event(f"skipped {min(len(skipped), 3)} or more")
    assert sorted(job.number for job in jobs) == sorted([job.number for job, _ in ran] + [skip.job.number for skip in skipped])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(grid=grids, total=totals)
def test_cheap_first_puts_what_needs_more_later(grid, total):
    known = [(gpu_need(job), demand(job.composed.config, job.placement.machine)) for job in jobs_of(grid, total)]
    for (need, mine), (other, others) in itertools.permutations(known, 2):
        if need.at_least(other):
            assert mine >= others
