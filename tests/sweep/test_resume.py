"""A sweep goes on with what is missing, however its command is spelt now; names, paths and lists of its trials."""

import re
import resource
import shutil
import subprocess
import sys

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.sweep.sweeps import Sweep, finished_earlier

pytestmark = pytest.mark.slow

COLD = "sweep.warm_start=false"


def test_the_spelling_and_the_order_of_overrides_do_not_matter(tmp_path):
    sweep = Sweep(tmp_path, COLD)
    assert sweep.run("zero=stage1,stage2", "batch.micro=2,4")[0] == 0
    assert sum(sweep.ran.values()) == 4
    stamps = sweep.stamps
    for spelt in (
        ["zero='stage1',\"stage2\"", "batch.micro=choice(2,4)", "batch.accumulation=1", "train.seed=42", "precision=bf16"],
        ["batch.micro=4", "zero=stage2,stage1", "batch.total=null", "lang=zh", "launch.timeout_minutes=9"],
    ):
        code, said = sweep.resume(*spelt)
        assert code == 0, said
        assert sweep.stamps == stamps, said
        assert finished_earlier(said) == (2 if "batch.micro=4" in spelt else 4)
    assert sum(sweep.ran.values()) == 4
    assert len(sweep.rows()) == 4


@pytest.mark.slow
def test_what_was_taken_away_runs_again_and_nothing_else(tmp_path):
    sweep = Sweep(tmp_path, "train.seed=1,2,3,4", COLD)
    assert sweep.run()[0] == 0
    first, second, third, fourth = sorted(sweep.stamps)
    (sweep.folder / first / "result.json").unlink()
    shutil.rmtree(sweep.folder / second)
    (sweep.folder / third / "result.json").write_text('{"state": "comp')
    kept = sweep.stamps[fourth]
    assert sweep.resume()[0] == 0
    assert sweep.ran == {first: 2, second: 2, third: 2, fourth: 1}
    assert sweep.stamps[fourth] == kept
    assert sweep.states == {"complete": 4}
    assert len(sweep.rows()) == 4


@pytest.mark.slow
def test_a_folder_with_trials_is_gone_on_with_only_when_asked(tmp_path):
    sweep = Sweep(tmp_path, "train.seed=1,2", "task=check")
    assert sweep.run()[0] == 0
    code, said = sweep.run()
    assert code == 2
    assert "holds 2 trial(s) already" in said
    assert "sweep.resume=true" in said


@pytest.mark.slow
def test_twins_run_once_in_whichever_order(tmp_path):
    sweep = Sweep(tmp_path, COLD)
    code, said = sweep.run("batch.accumulation=null,1", "train.seed=1,2")
    assert code == 0, said
    assert sweep.states == {"complete": 2, "skipped": 2}
    assert "the same effective configuration as" in said
    complete = {name: stamp for name, stamp in sweep.stamps.items() if sweep.results[name]["state"] == "complete"}
    code, said = sweep.resume("batch.accumulation=1,null", "train.seed=2,1")
    assert code == 0, said
    assert sum(sweep.ran.values()) == 2
    assert {name: sweep.stamps[name] for name in complete} == complete
    assert sweep.states == {"complete": 2, "skipped": 2}


@pytest.mark.slow
def test_names_paths_and_lists(tmp_path):
    """Trials have names that can be pasted as overrides, paths are those of the folder of the call, [a,b] is one value."""
    for folder in ("a=b, [c] é", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    paths = "data.path='a=b, [c] é/x.jsonl',b/x.jsonl,absent.jsonl"
    sweep = Sweep(tmp_path, "task=check", paths, "method=lora", "method.target_modules=[query_key_value,dense]")
    code, said = sweep.run()
    assert code == 0, said
    assert len(sweep.results) == 3
    for name in sweep.results:
        path = f"multirun/s/{name}"
        assert re.fullmatch(r"[A-Za-z0-9._/-]+", path)
        (parsed,) = OverridesParser.create().parse_overrides([f"train.resume={path}"])
        assert parsed.value() == path
    configs = [yaml.safe_load(path.read_text()) for path in sweep.folder.glob("*/config.yaml")]
    assert {config["data"]["path"] for config in configs} == {
        str(tmp_path / "a=b, [c] é" / "x.jsonl"),
        str(tmp_path / "b" / "x.jsonl"),
    }
    assert all(config["method"]["target_modules"] == ["query_key_value", "dense"] for config in configs)
    (refused,) = (result for result in sweep.results.values() if result["state"] == "invalid")
    assert str(tmp_path / "absent.jsonl") in refused["reason"]


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_told_of(tmp_path):
    """The page is of some MB and everything else of some KB, so a limit of the size of files stands for a disk that is full."""
    sweep = Sweep(tmp_path, "train.seed=1,2", COLD)
    process = sweep.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)))
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    assert "warning: the report was not written: OSError: [Errno 27]" in said
    assert "Traceback" not in said
    assert sweep.states == {"complete": 2}


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "multirun").write_text("a file")
    code, said = Sweep(tmp_path, "task=check", "train.seed=1,2").run()
    assert code == 2
    assert "hydra.sweep.dir=PATH" in said
    assert len(said.splitlines()) <= 6


def test_a_full_disk_ends_the_sweep_and_loses_nothing(tmp_path):
    small = ["unshare", "-rm", "bash", "-c"]
    if subprocess.run([*small, "mount -t tmpfs tmpfs /mnt"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    sweep = Sweep(tmp_path, "train.seed=range(1,7)", "task=check")
    (tmp_path / "multirun").mkdir()
    command = " ".join([sys.executable, "-m glmexp -m", *(f"'{text}'" for text in sweep.arguments), "sweep.name=s"])
    script = f"""
        mount -t tmpfs -o size=120k tmpfs multirun
        dd if=/dev/zero of=multirun/fill bs=1k count=64
        {command}; echo code $?
        cp -r multirun/s before
        mount -o remount,size=20m multirun
        {command} sweep.resume=true; echo code $?
        cp -r multirun/s after"""
    done = subprocess.run(
        [*small, script], cwd=tmp_path, env=sweep.environ, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert re.findall(r"code (\d+)", said) == ["1", "0"]
    assert re.search(r"^glmexp: the result of seed-\S+ could not be written: .*No space left on device", said, re.MULTILINE)
    before = {path.parent.name for path in tmp_path.glob("before/*/result.json")}
    assert 0 < len(before) < 6
    assert len(list(tmp_path.glob("after/*/result.json"))) == 6
    assert finished_earlier(said) == len(before)
