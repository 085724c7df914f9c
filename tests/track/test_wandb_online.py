"""W&B online, against a server on this machine."""

import json
from pathlib import Path

import pytest
from loopback_server import loopback_server
from offline_file import read_offline
from test_wandb import KEY, in_child


def test_an_online_run_reaches_the_server(tmp_path: Path) -> None:
    secret = "canary" * 6 + "5f1d"
    with loopback_server() as server:
        done = in_child(
            tmp_path,
            "tracker=wandb",
            "tracker.mode=online",
            "tracker.run_name=first",
            WANDB_API_KEY=KEY,
            WANDB_BASE_URL=server.url,
            MY_API_TOKEN=secret,
        )
        assert "error: None" in done.stdout, done.stdout + done.stderr
        assert f"where: {server.url}/me/glmexp/runs/" in done.stdout
        (sent,) = server.runs.values()
        assert sent["displayName"] == "first"
        assert json.loads(sent["config"])["batch"]["value"]["micro"] >= 1
        assert [row["loss"] for row in server.rows("wandb-history.jsonl")] == pytest.approx([1, 1 / 2, 1 / 3])
        assert server.rows("wandb-summary.json")[-1]["state"] == "complete"
        assert server.exit_code() == 0
        assert not sent.get("host")
        assert not any(secret.encode() in body or KEY.encode() in body for body in server.bodies)
    assert not any(KEY.encode() in item.read_bytes() for item in tmp_path.rglob("*") if item.is_file())
    assert done.stderr == ""


@pytest.mark.parametrize("key", [KEY, "too-short"])
def test_a_bad_key_falls_back_to_offline(tmp_path: Path, key: str) -> None:
    with loopback_server(refuse=True) as server:
        done = in_child(tmp_path, "tracker=wandb", WANDB_API_KEY=key, WANDB_BASE_URL=server.url, WANDB_INIT_TIMEOUT="5")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("W&B: no run on the server"), done.stdout + done.stderr
    assert lines[1:2] == ["error: None"]
    assert key not in done.stdout
    assert done.stderr == ""
    (path,) = tmp_path.rglob("*.wandb")
    run = read_offline(path)
    assert (len(run.history), run.exit_code) == (3, 0)
