"""Sweeps whose trials another launcher starts: Hydra's basic one, joblib, submitit, Ray."""

import os
import signal
from importlib.util import find_spec

import pytest

from tests.sweep.sweeps import Sweep, ended, until

PACKAGES = {
    "basic": "hydra",
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}


def launchers(*quick):
    """All of them, where they are installed; those that are not named are for the slow run."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"),
                *([] if name in quick else [pytest.mark.slow]),
            ],
        )
        for name, package in PACKAGES.items()
    ]


needs_joblib = pytest.mark.skipif(find_spec(PACKAGES["joblib"]) is None, reason="hydra-joblib-launcher is not installed")
OF_THEIR_OWN = {"ray": ("+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false")}


def words(launcher):
    return (f"hydra/launcher={launcher}", *OF_THEIR_OWN.get(launcher, ()))


@pytest.fixture
def sweep(tmp_path):
    made = []

    def make(*arguments, **more):
        made.append(Sweep(tmp_path, *arguments, **more))
        return made[-1]

    yield make
    for one in made:
        for pid in one.alive():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("launcher", launchers("joblib"))
def test_each_launcher_gives_the_same_folder(sweep, launcher):
    cells = ("zero=stage0,stage2", "offload=none,cpu", "batch.accumulation=1,null")
    sweep = sweep("task=check", *cells)
    code, said = sweep.run(*words(launcher))
    assert code == 0, said
    assert "Traceback" not in said
    assert sweep.states == {"complete": 3, "invalid": 2, "skipped": 3}
    assert len(sweep.rows()) == 8
    complete = {name: stamp for name, stamp in sweep.stamps.items() if sweep.results[name]["state"] == "complete"}
    assert all("the same effective" in one["reason"] for one in sweep.results.values() if one["state"] == "skipped")
    code, said = sweep.run(*words(launcher))
    assert code == 2
    assert "sweep.resume=true" in said
    code, said = sweep.resume(*words(launcher))
    assert code == 0, said
    assert sweep.states == {"complete": 3, "invalid": 2, "skipped": 3}
    assert {name: sweep.stamps[name] for name in complete} == complete
    assert sweep.resume()[0] == 0
    assert {name: sweep.stamps[name] for name in complete} == complete, "nor does glmexp's own launcher run them again"
    assert sweep.states == {"complete": 3, "invalid": 2, "skipped": 3}


@pytest.mark.parametrize("launcher", launchers())
def test_a_trial_that_fails_hurts_no_other(sweep, launcher):
    deeds = {1: "SIGKILL", 2: "raise", 3: "exit once"}
    sweep = sweep("train.seed=1,2,3,4", *words(launcher), deeds=deeds)
    code, said = sweep.run()
    assert code == 1, said
    assert sweep.states == {"killed": 1, "failed": 2, "complete": 1}
    code, said = sweep.resume("sweep.retry=[failed]")
    assert code == 1, said
    assert sweep.states == {"killed": 1, "failed": 1, "complete": 2}
    assert {name.split("-")[1]: count for name, count in sweep.ran.items()} == {"1": 1, "2": 2, "3": 2, "4": 1}


@pytest.mark.parametrize("launcher", launchers("joblib"))
@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
)
def test_nobody_outlives_the_parent(sweep, launcher, number):
    at_once = 1 if launcher == "basic" else 2
    sweep = sweep("train.seed=1,2,3", *words(launcher), deeds=dict.fromkeys(range(1, 1 + at_once), "hang once"))
    more = ("hydra.launcher.n_jobs=2",) if launcher == "joblib" else ()
    process = sweep.start(*more)
    until(lambda: sum(sweep.ran.values()) >= at_once, process=process)
    code, said = ended(process, number)
    # Where another launcher waits nobody catches SIGTERM; Ray ends by its own handler, and takes its time with its services.
    own = launcher == "ray" and number == signal.SIGTERM
    expected = {signal.SIGINT: [130], signal.SIGTERM: [143, -15], signal.SIGKILL: [-9]}
    assert code in expected[number] or (own and code != 0), said
    assert not {pid: command for pid, command in sweep.gone(20).items() if launcher != "ray" or "glmexp" in command}
    assert set(sweep.states) <= {"interrupted", "complete"}
    code, said = sweep.resume(*more)
    assert code == 0, said
    assert sweep.states == {"complete": 3}


@needs_joblib
def test_what_only_the_own_launcher_does_is_refused(sweep):
    for setting in ("sweep.slots=2", "sweep.time_budget_minutes=1"):
        code, said = sweep("train.seed=1,2", "hydra/launcher=joblib", setting).run()
        assert code == 2
        assert f"{setting.split('=')[0]} has no effect with hydra/launcher=joblib" in said
        assert len(said.splitlines()) <= 6


@needs_joblib
@pytest.mark.slow
def test_twins_that_run_at_once(sweep):
    """The second waits for the first, and then has its result to point at."""
    sweep = sweep("batch.accumulation=1,null", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", deeds={42: 2})
    code, said = sweep.run()
    assert code == 0, said
    assert sweep.states == {"complete": 1, "skipped": 1}
    assert sum(sweep.ran.values()) == 1


@pytest.mark.slow
@needs_joblib
def test_real_trials_side_by_side(sweep):
    sweep = sweep("zero=stage1,stage3", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", real=True)
    code, said = sweep.run()
    assert code == 0, said
    assert all(result["metrics"]["tokens_per_second"] > 0 for result in sweep.results.values())
    assert "2 trials: 2 complete" in said
