"""Whatever a config holds, the linter answers: known keys in any nesting with odd values never make it raise."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from glmexp.dsconfig.findings import Finding, Situation, View
from glmexp.dsconfig.rules import findings
from glmexp.dsconfig.table import walk

KEYS = sorted(dict(walk()))
NAMES = sorted({part for key in KEYS for part in key.split(".")})
NUMBERS = [0, 1, -1, 2, 3, 16, 32, 10**400, -(10**400), 5e8, 1e-300, 1.5, float("nan"), float("inf"), float("-inf")]
WORDS = [
    "auto",
    "none",
    "cpu",
    "nvme",
    "AdamW",
    "Muon",
    "adafactor",
    "bf16",
    "fp16",
    "sum",
    "true",
    "9" * 5000,
    "",
    "\u0662",
    "epoch",
]
ODD = st.sampled_from([None, True, False, [], {}, [1, "auto"], *NUMBERS, *WORDS]).map(deepcopy)
NESTED = st.recursive(ODD, lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4), max_leaves=12)
PLACED = st.dictionaries(st.sampled_from(KEYS), ODD, max_size=14)
SITUATIONS = st.builds(
    Situation,
    reader=st.sampled_from(["deepspeed", "hf"]),
    world_size=st.sampled_from([None, 1, 2, 3, 8]),
    device=st.sampled_from([None, "cpu", "gpu"]),
)


def answers(config, situation):
    for finding in findings(View(config), situation):
        assert isinstance(finding, Finding)
        assert finding.key
        assert finding.message
        assert "\n" not in finding.message
        assert len(finding.message) < 400


@settings(max_examples=150, deadline=None)
@given(config=st.dictionaries(st.sampled_from(NAMES), NESTED, max_size=8), situation=SITUATIONS)
def test_any_nesting_gets_an_answer(config, situation):
    answers(config, situation)


@settings(max_examples=300, deadline=None)
@given(placed=PLACED, stage=st.sampled_from([0, 1, 2, 3, "3", True, "auto", None]), situation=SITUATIONS)
def test_any_value_in_its_place_gets_an_answer(placed, stage, situation):
    config = {"zero_optimization": {"stage": stage}}
    for key, value in placed.items():
        *sections, name = key.split(".")
        target = config
        for section in sections:
            if not isinstance(target.get(section), dict):
                target[section] = {}
            target = target[section]
        target[name] = value
    answers(config, situation)
