"""The trials of a sweep: names, hashes, twins, refused ones."""

from dataclasses import replace

import pytest

from glmexp.config import compose
from glmexp.config.errors import UserError
from glmexp.config.files import save
from glmexp.sweep.earlier import not_of_this_grid
from glmexp.sweep.execute import outline
from glmexp.sweep.folder import SweepFolder
from glmexp.sweep.grid import Grid
from glmexp.sweep.jobs import Invalid, Job, job, label, share
from glmexp.sweep.launcher import refuse_if_none_can_run, refuse_swept_settings
from glmexp.sweep.overrides import swept_keys, values_of
from glmexp.sweep.slots import Slots, check_slots
from glmexp.trial.machine import Gpu, Probe
from glmexp.trial.record import State
from glmexp.trial.result import read_result, write_result

CPU = Probe((), "none here", 64.0, 8, "a CPU")
GPUS = tuple(Gpu(index, "NVIDIA H200", 139.8, (9, 0), f"GPU-{index}", f"00000000:{index:02x}:00.0") for index in range(4))
NODE = replace(CPU, gpus=GPUS, gpu_problem=None)


def made(*overrides, swept=("zero", "batch.micro"), number=0, found=CPU, slots=1):
    return job(number, ["task=measure", "model=tiny", *overrides], swept, compose, found, slots)


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["zero=stage2", "batch.micro=4", "train.seed=1"], "zero-stage2_micro-4"),
        (["batch.micro=4", "zero=stage2"], "zero-stage2_micro-4"),
        (["batch.micro=4"], "micro-4"),
        (["train.seed=1"], "trial"),
        (["zero=../x y/数据,=[é]"], "zero-x"),
        (["zero=" + "9" * 500], "zero-" + "9" * 24),
    ],
)
def test_labels_are_short_and_safe(overrides, wanted):
    assert label(overrides, ["zero", "batch.micro"]) == wanted


def test_paths_become_siblings():
    assert label(["data.path=a/x.jsonl"], ["data.path"]) == "path-x"


def test_swept_keys_are_those_that_differ():
    jobs = [["model=tiny", "zero=stage1", "+a.b=1"], ["model=tiny", "zero=stage2", "+a.b=1"], ["model=tiny", "zero=stage2"]]
    assert swept_keys([values_of(overrides) for overrides in jobs]) == ["zero", "a.b"]


def test_a_trial_is_named_by_what_it_is():
    one, other = made("zero=stage2", "batch.micro=4"), made("batch.micro=4", "batch.accumulation=1", "zero=stage2")
    assert isinstance(one, Job)
    assert one.name == other.name == f"zero-stage2_micro-4-{one.config_hash[:8]}"


def test_a_refused_combination_has_a_name_and_a_reason():
    refused = made("zero=stage0", "offload=cpu")
    assert isinstance(refused, Invalid)
    assert "zero=stage0" in refused.reason or "stage" in refused.reason
    assert refused.name == made("offload=cpu", "sweep.resume=true", "tracker.tags=[a]", "zero=stage0", "lang=zh").name
    assert refused.name != made("zero=stage0", "offload=cpu", "batch.total=7").name


def test_twins_are_skipped_and_refused_ones_recorded(tmp_path):
    grid = Grid([made("batch.micro=1"), made("batch.micro=1", "batch.accumulation=1"), made("zero=stage0", "offload=cpu")])
    assert len(grid.jobs) == 1
    folder = SweepFolder(tmp_path)
    told = []
    grid.record_what_cannot_run(folder, lambda *what: told.append(what))
    assert [state for _, state, _ in told] == [State.invalid, State.skipped]
    results = {finished.folder.name: finished.result for finished in folder.results()}
    assert set(results) == {name for name, _, _ in told}
    assert grid.jobs[0].name in told[1][2]
    assert grid.jobs[0].name not in results
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    grid.record_what_cannot_run(folder, lambda *what: None)
    assert {path.name for path in stamps} == {"result.json"}
    assert len(folder.results()) == 2


def test_what_was_refused_earlier_is_decided_anew(tmp_path):
    folder = SweepFolder(tmp_path)
    refused = Invalid(0, ("zero=stage2", "model=tiny", "task=measure"), "zero-stage2", "no such file")
    Grid([refused]).record_what_cannot_run(folder, lambda *what: None)
    assert len(folder.results()) == 1
    Grid([made("zero=stage2")]).record_what_cannot_run(folder, lambda *what: None)
    assert folder.results() == []


def test_what_ran_keeps_its_result_in_another_order(tmp_path):
    folder = SweepFolder(tmp_path)
    swept = ("zero", "batch.micro", "batch.accumulation")
    first = [made("batch.accumulation=null", swept=swept), made("batch.accumulation=1", swept=swept, number=1)]
    grid = Grid(first, folder.ran())
    grid.record_what_cannot_run(folder, lambda *what: None)
    (ran,) = grid.jobs
    place = folder.place(ran.name, ran.config_hash)
    place.mkdir()
    write_result(outline(ran, State.complete, ""), place)
    again = Grid(list(reversed(first)), folder.ran())
    again.record_what_cannot_run(folder, lambda *what: None)
    assert again.jobs == [ran]
    states = {finished.folder.name: finished.result.state for finished in folder.results()}
    assert states == {ran.name: State.complete, first[1].name: State.skipped}


def test_refused_trials_that_are_the_same_have_a_row_each(tmp_path):
    folder = SweepFolder(tmp_path)
    refused = [made("zero=stage0", "offload=cpu", number=number) for number in range(2)]
    told = []
    Grid(refused).record_what_cannot_run(folder, lambda name, state, reason: told.append(name))
    assert told == [refused[0].name, f"{refused[0].name}-1"]
    assert [finished.folder.name for finished in folder.results()] == told


def test_a_try_of_what_was_skipped_since_is_not_forgotten(tmp_path):
    folder = SweepFolder(tmp_path)
    item = made("zero=stage2")
    folder.record(item.name, outline(item, State.failed, "exit code 3"))
    folder.record(item.name, outline(item, State.skipped, "a smaller one ran out of memory"))
    Grid([item], folder.ran()).record_what_cannot_run(folder, lambda *what: None)
    assert read_result(tmp_path / item.name) is None
    assert read_result(tmp_path / item.name / "attempt1").reason == "exit code 3"


def test_slots_give_disjoint_gpus():
    jobs = [made("launch.ranks=2", f"batch.micro={micro}", found=NODE, slots=2) for micro in (1, 2, 4)]
    slots = Slots(2, GPUS)
    first, second = slots.take(jobs[0]), slots.take(jobs[1])
    assert first.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert second.environ["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-3"
    assert first.placement.gpus == GPUS[:2]
    assert second.placement.gpus == GPUS[2:]
    assert slots.take(jobs[2]) is None
    slots.give(first)
    assert slots.take(jobs[2]).gpus == GPUS[:2]


def test_a_trial_waits_for_as_many_gpus_as_it_needs():
    wide, narrow = made("launch.ranks=3", found=NODE, slots=2), made("launch.ranks=1", found=NODE, slots=2)
    slots = Slots(2, GPUS)
    assert slots.take(wide) is not None
    assert slots.take(wide) is None
    assert slots.take(narrow) is not None


def test_a_trial_without_a_number_of_ranks_takes_its_share():
    assert made(found=NODE, slots=2).placement.ranks == 2
    assert made(found=NODE, slots=1).placement.ranks == 4
    assert share(CPU, 4, None).cpus == 2


def test_too_many_slots_are_refused():
    with pytest.raises(UserError, match=r"sweep\.slots=2"):
        check_slots(3, [made("launch.ranks=2", found=NODE, slots=3)], GPUS)
    check_slots(4, [made("launch.ranks=1", found=NODE, slots=4)], GPUS)
    check_slots(9, [made()], ())


def test_trials_that_are_all_refused_for_one_reason_are_refused_once():
    refused = [Invalid(number, (), "a", "no such file") for number in range(3)]
    with pytest.raises(UserError, match=r"no such file\nall 3 trials are refused for this reason"):
        refuse_if_none_can_run(refused)
    refuse_if_none_can_run([*refused, replace(refused[0], reason="another")])
    refuse_if_none_can_run([*refused, made()])
    refuse_if_none_can_run([made()])


def test_earlier_trials_that_are_not_of_this_grid_are_counted(tmp_path):
    folder = SweepFolder(tmp_path)
    for item in (made("measure.steps=2", f"batch.micro={micro}") for micro in (1, 2, 4)):
        place = folder.place(item.name, item.config_hash)
        place.mkdir()
        save(item.composed.config, place / "config.yaml")
        write_result(outline(item, State.complete, ""), place)
    same = [made("measure.steps=2", f"batch.micro={micro}") for micro in (1, 2, 4)]
    assert not_of_this_grid(folder, same, []) is None
    fewer = not_of_this_grid(folder, same[:1], [])
    assert fewer.startswith("2 earlier trials in this folder are not of this grid (batch.micro=2,4 there, 1 now)")
    assert not_of_this_grid(folder, same[:1], ["batch.micro"]) is None, "a search has its own values"
    other = [made("measure.steps=3", f"batch.micro={micro}", "sweep.slots=2") for micro in (1, 2, 4)]
    for searched in ([], ["batch.micro"]):
        told = not_of_this_grid(folder, other, searched)
        assert told.startswith("3 earlier trials in this folder are not of this grid (measure.steps=2 there, 3 now)")
    (tmp_path / same[0].name / "config.yaml").write_text(": :")
    assert not_of_this_grid(folder, other, []).startswith("3 earlier trials")


def test_settings_of_the_sweep_take_one_value():
    with pytest.raises(UserError, match=r"sweep\.order"):
        refuse_swept_settings(["zero", "sweep.order"])


def test_a_secret_is_in_no_reason(monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "canary-5f1d")
    item = Invalid(0, ("data.path=${oc.env:PLACE}",), "x", "data.path=/canary-5f1d/x.jsonl is not there")
    assert outline(item, State.invalid, item.reason).reason == "data.path=/***/x.jsonl is not there"


def test_a_path_that_cannot_be_looked_up_is_a_refusal(monkeypatch):
    assert "cannot be read: File name too long" in made(f"model.path=/{'x' * 300}").reason

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("glmexp.sweep.jobs.config_hash", refuse)
    assert "Permission denied" in made("zero=stage1").reason
