"""What Hydra's callback takes from the command line, and what it refuses before the first trial."""

import json

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from glmexp.config.compose import VERSION_BASE, conf_dir, register
from glmexp.sweep import session
from glmexp.sweep.callback import SweepCallback, swept
from glmexp.sweep.launcher import refuse_no_values
from glmexp.sweep.parent import PARENT
from glmexp.sweep.session import SweepRefusedError


@pytest.fixture
def composed(tmp_path, monkeypatch):
    """``composed("train.seed=1,2")``: what Hydra hands to the callback of ``--multirun``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_sessions", [])
    monkeypatch.setenv(PARENT, "")  # as it was afterwards
    register()
    with initialize_config_dir(version_base=VERSION_BASE, config_dir=conf_dir(), job_name="glmexp"):
        loader = GlobalHydra.instance().config_loader()
        yield lambda *overrides: loader.load_configuration("config", list(overrides), run_mode=RunMode.MULTIRUN)


def refusal(config):
    with pytest.raises(SweepRefusedError) as refused:
        SweepCallback().on_multirun_start(config)
    return str(refused.value.error)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sweep.name=${oc.env:NOWHERE_SET}"], "NOWHERE_SET"),
        (["sweep.gpu_memory_gib=???"], "sweep.gpu_memory_gib"),
        (["~lang"], "lang"),
        (["hydra.sweep.dir=${foo}"], "'foo' not found"),
        (["train.seed=interval(1,5)"], "give the values one by one"),
        (["hydra.sweeper.max_batch_size=2"], "sweep.slots=N"),
        (["hydra.sweeper.max_batch_size=2", "hydra/sweeper=basic"], "sweep.slots=N"),
        (["sweep.resume=true"], "which sweep?"),
        (["sweep.name=a", "++hydra.sweep.dir=b"], "hydra.sweep.dir=b both name"),
        (["sweep.name=a", "hydra.sweep={dir:b,subdir:.}"], "hydra.sweep.dir=b both name"),
    ],
)
def test_what_is_refused(composed, tmp_path, overrides, words):
    assert words in refusal(composed("train.seed=1,2", *overrides))
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_our_own_ends_the_sweep_too(composed, monkeypatch):
    """Hydra makes a warning of any other exception, and would start the trials without a folder."""
    monkeypatch.setattr("glmexp.sweep.callback.swept", lambda config: 1 // 0)
    with pytest.raises(SweepRefusedError) as refused:
        SweepCallback().on_multirun_start(composed())
    assert isinstance(refused.value.error, ZeroDivisionError)


@pytest.mark.parametrize("value", ["a,b", "a (b", "'", None])
def test_a_variable_is_one_value_whatever_it_holds(composed, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("HELD", value)
    overrides = ["train.seed=1,2", "model.path=${oc.env:HELD}", "+hydra.sweeper.params.zero='stage1,stage2'"]
    assert swept(composed(*overrides)) == ["zero", "train.seed"]


@pytest.mark.parametrize("override", ["hydra.sweep.dir=b", "++hydra.sweep.dir=b", "hydra.sweep={dir:b,subdir:.}"])
def test_a_folder_that_is_named_can_be_resumed(composed, tmp_path, override):
    SweepCallback().on_multirun_start(composed("train.seed=1,2", override, "sweep.resume=true"))
    assert json.loads((tmp_path / "b" / "sweep.json").read_text())["swept"] == ["train.seed"]
    session.current().folder.close()


def test_a_grid_without_values_is_refused_by_its_name(composed):
    composed()
    with pytest.raises(ValueError, match=r"^zero=glob\(xx\*\) comes to no value"):
        refuse_no_values(GlobalHydra.instance().config_loader(), ["train.seed=1,2", "zero=glob(xx*)", "lang=zh"])
