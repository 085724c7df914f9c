"""Datasets of the hub: a folder here, which ``datasets`` reads by name as one of the hub, and a hub on this machine."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from characters import data_config
from test_preview import show
from test_read import ANSWER, QUESTION

from glmexp.config.choices import OnBad, Source
from glmexp.config.errors import UserError
from glmexp.data.read import read

pytest.importorskip("datasets")

SAMPLES = [{"query": "问", "response": "答", "history": []}, {"query": "问", "response": "", "history": [["你好", "您好"]]}]
"""The second one is bad: its answer is empty."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing of this user's cache is used, or left in it."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    for split, samples in (("train", SAMPLES), ("test", SAMPLES[:1])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return folder


def hub(path, **changes):
    return data_config(path, source=Source.hub, **changes)


def refused(data, *words):
    with pytest.raises(UserError) as caught:
        list(read(data))
    assert len(str(caught.value).splitlines()) <= 6
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_split_is_read_like_a_file(dataset, streaming):
    data = hub(dataset, streaming=streaming)
    refused(data, f"{dataset}[train]:2: column 'response' is empty")
    reading = read(hub(dataset, streaming=streaming, on_bad=OnBad.skip))
    assert [(one.messages, one.place) for one in reading] == [([QUESTION, ANSWER], f"{dataset}[train]:1")]
    assert (reading.read, reading.bad) == (2, 1)
    assert reading.expected() == (None if streaming else 2)
    assert len(list(read(hub(dataset, streaming=streaming, split="test")))) == 1
    lines = show(dataset, source=Source.hub, streaming=streaming, split="test")
    assert lines[0] == f"{dataset}[test]: 1 sample"


@pytest.mark.parametrize("streaming", [False, True])
def test_what_the_dataset_has_not_is_told_with_what_it_has(dataset, streaming):
    refused(hub(dataset, streaming=streaming, split="dev"), "no split dev", "'train', 'test'", "set data.split")
    refused(hub(dataset, streaming=streaming, subset="zh"), "data.subset=zh", "['default']")
    columns = {"prompt": "question", "response": "response"}
    refused(hub(dataset, streaming=streaming, columns=columns), ":1: no column 'question'", "found: query, response, history")


def test_a_stream_is_read_up_to_the_limit(tmp_path):
    (tmp_path / "dataset").mkdir()
    with (tmp_path / "dataset" / "train.jsonl").open("w") as handle:
        handle.writelines(json.dumps({"prompt": "a", "response": str(number)}) + "\n" for number in range(5000))
    reading = read(hub(tmp_path / "dataset", streaming=True, limit=3))
    assert [one.messages[-1]["content"] for one in reading] == ["0", "1", "2"]
    lines = show(tmp_path / "dataset", source=Source.hub, streaming=True, samples=2)
    assert "at least 3 samples; the first 2 follow" in lines[0]


class Refusing(BaseHTTPRequestHandler):
    """A hub that has no dataset, or none that is open to all."""

    def do_HEAD(self):
        self.send_response(*((403, "Forbidden") if "gated" in self.path else (401, "Unauthorized")))
        self.send_header("X-Error-Code", "GatedRepo" if "gated" in self.path else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *arguments):
        """Says nothing."""


READS = """
import sys
sys.path.insert(0, sys.argv[1])
from characters import data_config
from glmexp.config.choices import Source
from glmexp.config.errors import UserError
from glmexp.data.read import read
for name in sys.argv[2:]:
    try:
        list(read(data_config(name, source=Source.hub)))
    except UserError as error:
        print(error)
"""


def elsewhere(tmp_path, *names, **environment):
    """What a process of its own, for the client reads its environment once, says of datasets that cannot be had."""
    done = subprocess.run(
        [sys.executable, "-c", READS, os.path.dirname(__file__), *names],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd(), **environment},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_hub_without_the_dataset(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://user:canary@127.0.0.1:{server.server_port}"
        told = elsewhere(tmp_path, "owner/absent", "owner/gated", HF_ENDPOINT=endpoint, HF_TOKEN="hf_canary")
        server.shutdown()
    assert "data.path=owner/absent (data=hub): no such dataset on the hub" in told
    assert "data.path=owner/gated (data=hub): access must be granted" in told
    assert "canary" not in told


def test_no_network(tmp_path):
    told = elsewhere(tmp_path, "owner/name", HF_HUB_OFFLINE="1")
    assert "data.path=owner/name (data=hub) is not on this machine, and the hub cannot be reached" in told
    assert "HF_ENDPOINT" in told


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_of_no_samples_is_told(tmp_path, streaming):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"x": "a"}\n')
    message = refused(hub(folder, streaming=streaming), f"{folder}[train]:1: none of the usual columns", "found: x")
    assert len(message.splitlines()) == 2, "the columns are wrong, and no sample is"
    (folder / "train.jsonl").write_text('{"broken\n')
    refused(hub(folder, streaming=streaming), f"data.path={folder}", "cannot be read")
