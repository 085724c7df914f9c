"""``python -m glmexp lint`` as a process: what it prints, its exit code, how fast it starts, what it loads; and its files."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from glmexp.config import UserError
from glmexp.dsconfig.json_file import read
from glmexp.dsconfig.lint_command import main, parse

GOOD = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": False},
}
TYPO = {**GOOD, "gradient_clip": 0.5}


def lint(*arguments, text=None, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "glmexp", "lint", *arguments],
        capture_output=True, encoding="utf-8", input=text, cwd=cwd, timeout=60, env=environment(),
    )  # fmt: skip


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def file(tmp_path):
    def write(config, name="ds.json"):
        path = tmp_path / name
        path.write_bytes(
            config if isinstance(config, bytes) else (config if isinstance(config, str) else json.dumps(config)).encode()
        )
        return str(path)

    return write


def test_for_people(file):
    done = lint(file(TYPO))
    assert done.returncode == 2
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "error    gradient_clip  no such key, DeepSpeed ignores it; did you mean gradient_clipping? [unknown]",
        "1 error",
    ]
    done = lint(file(GOOD))
    assert (done.returncode, done.stdout, done.stderr) == (0, "no findings\n", "")


def test_an_info_alone_is_no_failure(file):
    config = {**GOOD, "zero_optimization": {"stage": 2, "allgather_partitions": True}}
    done = lint(file(config))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "1 info"


def test_json_is_a_list_and_nothing_else(file):
    done = lint(file(TYPO), "--json")
    assert done.returncode == 2
    (finding,) = json.loads(done.stdout)
    assert finding["key"] == "gradient_clip"
    assert set(finding) == {"key", "kind", "severity", "message"}
    assert (finding["kind"], finding["severity"]) == ("unknown", "error")
    assert json.loads(lint("--json", file(GOOD)).stdout) == []
    broken = lint(file("{"), "--json")
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "is not JSON: line 1, column 2" in broken.stderr


def test_standard_input_and_the_reader():
    config = json.dumps({**GOOD, "gradient_clipping": "auto"})
    assert lint("-", text=config).returncode == 2
    done = lint("-", "--for=hf", "--json", text=config)
    assert done.returncode == 0
    assert [(it["key"], it["severity"]) for it in json.loads(done.stdout)] == [("gradient_clipping", "info")]


def test_starts_in_half_a_second_and_loads_nothing_heavy(file):
    path, times = file(GOOD), []
    for _ in range(3):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert lint(path).returncode == 0
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)  # a busy machine does not count
    assert min(times) < 0.5, times
    code = f"from glmexp.dsconfig.lint_command import main; main(['{path}']); import sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    ).stdout.split()
    assert not {"torch", "deepspeed", "transformers", "hydra", "numpy", "wandb", "rich", "hjson"} & set(loaded)


def test_in_the_order_of_the_file(capsys, file):
    config = {
        "zero_optimization": {"stge": 2, "stage": 7},
        "bf16": {"enabled": "no"},
        "gradient_clip": 1,
        "fp32_allreduce": True,
    }
    main([file({**config, "train_micro_batch_size_per_gpu": 1}), "--json"])
    keys = [finding["key"] for finding in json.loads(capsys.readouterr().out)]
    assert keys == ["zero_optimization.stge", "zero_optimization.stage", "bf16.enabled", "gradient_clip", "fp32_allreduce"]


def test_for_people_errors_come_first(capsys, file):
    config = {**GOOD, "zero_optimization": {"stage": 2, "allgather_partitions": True}, "gradient_clip": 1, "bf17": {}}
    main([file(config)])
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert lines == [["error", "gradient_clip"], ["error", "bf17"], ["info", "zero_optimization.allgather_partitions"]]


def test_a_file_of_the_trainers_is_recognised(capsys, file):
    path = file({**GOOD, "gradient_clipping": "auto", "gradient_accumulation_steps": "auto"})
    hint = '2 values are "auto": if the HF Trainer or accelerate reads this file, lint it with --for hf'
    assert main([path]) == 2
    assert capsys.readouterr().out.splitlines()[-2:] == ["2 errors", hint]
    for arguments in (["--for", "hf"], ["--json"]):
        main([path, *arguments])
        assert "--for hf" not in capsys.readouterr().out


def test_a_new_key_can_be_let_through(capsys, file):
    path = file({**GOOD, "brand_new": True, "stage": 2})
    assert main([path, "lint.allow=[brand_new,stage]"]) == 2
    misplaced, allowed = capsys.readouterr().out.splitlines()[:2]
    assert misplaced.startswith("error    stage  ")
    assert allowed == "info     brand_new  let through by lint.allow; glmexp does not know what it does [unknown]"
    assert main([file({**GOOD, "brand_new": True}), "lint.allow=['brand_new']"]) == 0


def test_the_trainer_reads_strict_json(file):
    path = file('{"train_batch_size": 1,}')
    assert read(path).note
    with pytest.raises(UserError, match="a trailing comma or a comment"):
        read(path, "hf")
    with pytest.raises(UserError) as error:
        read(file("{"), "hf")
    assert "comma" not in str(error.value)


def test_what_a_file_says_cannot_move_the_cursor_or_break_a_line(file):
    path = file(
        '{"\\u001b[2J\\n\\ud800": 1, "train_batch_size": "\\ud800\\u0007", "\u6279\u91cf": 1, "bf16": {"enabled": true}}'
    )
    done = lint(path)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 4
    assert "\x1b" not in done.stdout
    assert "\u6279\u91cf  no such key" in done.stdout
    assert len(json.loads(lint(path, "--json").stdout)) == 3


def test_another_installed_release_is_said_once(monkeypatch, capsys, file):
    monkeypatch.setattr("glmexp.dsconfig.lint.version", lambda name: "0.20.0")
    assert main([file(GOOD), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == []
    assert captured.err.splitlines() == ["note: these are the rules of DeepSpeed 0.19.8; 0.20.0 is installed here"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"[1]", "holds a list, not an object"),
        (b"null", "holds null, not an object"),
        (b"3", "holds a number, not an object"),
        (b'{"a": 1,\n "b" 2}', "line 2, column 6"),
        (b'{"a": 1, "a": 2}', "a stands twice in one section"),
        (b'{"zero_optimization": {"stage": 1, "stage": 2}}', "stage stands twice"),
        (b'{"a": "\xff"}', "not text in UTF-8 (byte 7)"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\x00\x01", "is not JSON"),
    ],
)
def test_a_file_that_is_no_config(content, says, file):
    with pytest.raises(UserError) as error:
        read(file(content))
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_a_path_that_is_no_file(tmp_path):
    for path, says in (("none.json", "is not there"), (".", "is a folder"), ("", "is not there"), ("a\0b", "is not there")):
        with pytest.raises(UserError, match=says):
            read(str(tmp_path / path) if path not in ("", "a\0b") else path)
    done = lint("none.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("glmexp: none.json is not there")


COMMENTED = '{\n  // the learning rate\n  "gradient_clip": 1.0, # typo\n  "bf16": {"enabled": true,},\n}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"a": "' + "x" * 2**20 + '"}', "larger than 1 MiB"),
        ('{"a" "' + "x" * 2**20, "larger than 1 MiB"),
        (json.dumps({f"key{number}": 1 for number in range(2001)}), "more than 2,000 keys"),
        ('{"a":' * 60 + "1" + "}" * 60, "nested too deeply"),
        ('{"a":' + "[" * 60 + "]" * 60 + "}", "nested too deeply"),
        ('{"train_batch_size":' + "9" * 5000 + "}", "is not JSON that anything reads: a whole number of thousands of digits"),
    ],
)
def test_a_file_beyond_measure_is_told_at_once(content, says, file):
    with pytest.raises(UserError, match=says):
        read(file(content))


def test_endless_and_absent_input():
    with pytest.raises(UserError, match="larger than 1 MiB"):
        read("/dev/zero")
    closed = subprocess.run(
        ["bash", "-c", 'exec "$0" -m glmexp lint - <&-', sys.executable],
        capture_output=True, encoding="utf-8", timeout=60, env=environment(),
    )  # fmt: skip
    assert (closed.returncode, closed.stdout) == (2, "")
    assert "standard input is closed" in closed.stderr


def test_no_finding_shows_the_credentials_of_a_url(capsys, file):
    main([file({**GOOD, "optimizer": {"type": "https://user:hunter2@host/x"}})])
    shown = capsys.readouterr().out
    assert "https://...@host/x" in shown
    assert "hunter2" not in shown


def test_comments_pass_where_deepspeed_reads_and_not_where_the_trainer_does(file):
    path = file(COMMENTED)
    parsed = read(path)
    assert parsed.config["gradient_clip"] == 1.0
    assert "not strict JSON (line 2, column 3" in parsed.note
    with pytest.raises(UserError, match="line 2, column 3"):
        read(path, "hf")
    done = lint(path)
    assert done.returncode == 2
    assert "gradient_clip" in done.stdout
    assert "note:" in done.stderr


def test_a_byte_order_mark_passes_where_deepspeed_reads(file):
    path = file(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert read(path).config == GOOD
    with pytest.raises(UserError, match="byte order mark"):
        read(path, "hf")


def test_numbers_are_those_that_deepspeed_reads(file):
    import hjson

    text = '{"a": 5e8, "b": 2.0, "c": 1e-5, "d": 1e30, "e": 2.5, "f": 12345678901.0, "g": -3.0}'
    for name, value in hjson.loads(text).items():
        ours = read(file(text)).config[name]
        assert (ours, type(ours)) == (value, type(value)), name
    assert isinstance(read(file(text), "hf").config["b"], float)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--jsn", "a"], "did you mean --json?"),
        (["--world-size", "0", "a"], "at least 1"),
        (["--world-size", "two", "a"], "--world-size two"),
        (["--world-size"], "needs a value"),
        (["--for", "llamafactory", "a"], "deepspeed or hf"),
        (["--device=tpu", "a"], "gpu or cpu"),
        (["a", "b"], "one file"),
        (["--json"], "one file, got none"),
        (["-x", "a"], "no such option"),
        (["--hf", "a"], "did you mean --for hf?"),
        (["a", "lint.allow=x"], "lint.allow: must be a list"),
    ],
)
def test_wrong_arguments_are_the_users_error(arguments, says):
    with pytest.raises(UserError) as error:
        parse(arguments)
    assert says in str(error.value)


def test_arguments():
    asked = parse(["--world-size=4", "--device", "cpu", "a.json", "--for", "hf"])
    assert (asked.path, asked.as_json) == ("a.json", False)
    assert (asked.situation.reader, asked.situation.world_size, asked.situation.device) == ("hf", 4, "cpu")


def test_help():
    done = lint("--help")
    assert done.returncode == 0
    assert "usage: python -m glmexp lint FILE" in done.stdout
    assert lint().returncode == 2
