"""Ulysses sequence parallelism: ranks that share each sample train as one rank does, and each token counts once."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_trials import MOVING, Plain, RunTrial, train_plainly, write_trial  # type: ignore[import-not-found]

from glmexp.data import collate
from glmexp.train.loss import loss_sum, shifted
from glmexp.train.sequence_parallel import part_of
from glmexp.trial.record import DS_CONFIG

SHARED = [*MOVING, "comm=ulysses", "zero=stage3", "zero.stage3_param_persistence_threshold=0", "train.max_steps=4"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """The same training in plain PyTorch, where nothing is shared: a global batch of 8, fp32, eager attention."""
    return train_plainly(write_trial(tmp_path_factory.mktemp("plain") / "plain", [*MOVING, "train.max_steps=4"]))


def random_rows(lengths: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = []
    for length in lengths:
        ids = torch.randint(1, 50, (length,), generator=generator)
        rows.append((ids.numpy(), torch.where(torch.rand(length, generator=generator) < 0.4, -100, ids).numpy()))
    return rows  # type: ignore[return-value]


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3), size=st.integers(1, 5))
def test_the_parts_make_up_the_whole(lengths: list[int], size: int) -> None:
    batch = collate(random_rows(lengths), pad_id=0)  # type: ignore[arg-type]
    parts = [part_of(batch, size, place) for place in range(size)]
    length = max(lengths)
    assert torch.cat([part.input_ids for part in parts], 1)[:, :length].equal(batch.input_ids)
    targets = torch.cat([part.targets for part in parts], 1)
    assert targets[:, :length].equal(shifted(batch.labels))
    assert (targets[:, length:] == -100).all(), "padding is never learnt"
    assert sum(part.tokens for part in parts) == batch.tokens == sum(lengths)
    assert len({part.input_ids.shape for part in parts}) == 1
    if size > 1:
        places = torch.cat([part.position_ids for part in parts], 1)  # type: ignore[misc]
        assert places.tolist() == [list(range(places.shape[1]))] * len(lengths)
    logits = torch.randn(len(lengths), targets.shape[1], 50)
    summed = sum(loss_sum(some, part.targets) for some, part in zip(logits.chunk(size, 1), parts, strict=True))
    assert float(summed) == pytest.approx(float(loss_sum(logits[:, :length], shifted(batch.labels))), rel=1e-5)


def test_a_rank_predicts_the_first_token_of_the_next() -> None:
    ids = torch.tensor([5, 6, 7, 8]).numpy()
    first, second = (part_of(collate([(ids, ids)], pad_id=0), 2, place) for place in range(2))
    assert (first.targets.tolist(), second.targets.tolist()) == ([[6, 7]], [[8, -100]])


@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [
        (2, ["batch.micro=8"]),
        (2, ["batch.micro=2", "batch.total=8", "activation=checkpoint"]),
        (4, ["batch.micro=4"]),
        (4, ["batch.micro=2", "batch.total=8", "comm.sequence_parallel_size=4"]),
    ],
    ids=["one micro batch", "accumulation", "two groups", "more ranks than heads of keys and values"],
)
def test_shared_samples_train_as_in_plain_pytorch(run_trial: RunTrial, plain: Plain, ranks: int, overrides: list[str]) -> None:
    trial = run_trial("trial", *SHARED, *overrides, ranks=ranks).ok()
    assert json.loads((trial.folder / DS_CONFIG).read_text())["train_batch_size"] == 8
    assert plain.losses[0] - plain.losses[-1] > 0.1
    assert trial.losses == pytest.approx(plain.losses, abs=5e-4)
    assert trial.norms == pytest.approx(plain.norms, rel=2e-3)
    assert "that share a sample = 8 samples a step" in trial.log
