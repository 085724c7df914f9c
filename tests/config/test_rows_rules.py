import pytest

from glmexp.config import UserError, compose
from glmexp.config.batch import solve
from glmexp.config.rules import warnings
from glmexp.train.task import for_task


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["data.packing=true", "data.group_by_length=true"],
            ["data.group_by_length=true has no effect with data.packing=true"],
        ),
        (["data.packing=true", "comm=ulysses", "zero=stage3"], ["data.packing=true does not go with comm=ulysses"]),
        (["data=synthetic", "data.packing=true"], ["data.packing=true has no effect with data=synthetic"]),
        (["data=synthetic", "data.group_by_length=true"], ["data.group_by_length=true has no effect with data=synthetic"]),
        (["data=synthetic", "data.turns=last"], ["data.turns=last has no effect with data=synthetic"]),
        (["data=synthetic", "data.eval_share=0.1"], ["data.eval_share=0.1 has no effect with data=synthetic"]),
        (["data.eval_limit=9"], ["data.eval_limit=9 has no effect without validation samples"]),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused(overrides, words):
    with pytest.raises(UserError) as told:
        compose(overrides)
    for word in words:
        assert word in str(told.value)


def test_grouping_has_no_padding_to_save_in_batches_of_one():
    assert any("batch.micro=1" in line for line in warnings(compose(["data.group_by_length=true", "batch.micro=1"]).config))
    assert not warnings(compose(["data.group_by_length=true", "batch.micro=2"]).config)


MEASURE = ["task=measure", "data.packing=true", "data.eval_share=0.1"]


def test_random_tokens_are_not_packed_and_nothing_is_held_out_to_measure():
    data = for_task(compose(MEASURE).config).data
    assert (data.packing, data.eval_share) == (False, None)
    data = for_task(compose([*MEASURE, "measure.samples=longest"]).config).data
    assert (data.packing, data.eval_share) == (True, None)


def test_what_measuring_leaves_out_is_told():
    composed = compose([*MEASURE, "measure.samples=longest"])
    assert [line for line in warnings(composed.config, composed.sources) if "data.eval_share" in line]
    grouped = compose(["task=measure", "measure.samples=longest", "data.group_by_length=true"])
    assert [line for line in warnings(grouped.config, grouped.sources) if "the longest first" in line]


def test_the_batch_counts_rows_where_they_hold_several_samples():
    batch = solve(compose(["batch.micro=2", "batch.total=8"]).config.batch, 2)
    assert batch.arithmetic(2, packed=True) == "batch: micro 2 x accumulation 2 x ranks 2 = 8 rows a step"
    assert batch.arithmetic(2).endswith("= 8 samples a step")
