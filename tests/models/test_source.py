"""Folders and hubs. A loopback server stands in for the Hugging Face hub; the client runs in a child process, because it
reads HF_ENDPOINT when it is imported."""

import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import ModelLoadError, locate
from glmexp.models.source import _without_credentials, located

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "chatglm2"
SHA = "0123456789abcdef0123456789abcdef01234567"
CHILD = """
import json, sys
from glmexp.config.choices import Hub, Init
from glmexp.config.schema import ModelConfig
from glmexp.models import ModelLoadError, locate
path, init, revision, local_only = sys.argv[1:]
model = ModelConfig(path=path, hub=Hub.huggingface, revision=revision or None, init=Init(init), template=None, rope_style=None,
                    recommended_precisions=[])
try:
    folder = locate(model, local_only=bool(local_only))
    found = {"files": sorted(p.name for p in folder.iterdir())}
    if init == "pretrained":
        from glmexp.models import load_model
        found["parameters"] = sum(p.numel() for p in load_model(path).parameters())
    else:
        from glmexp.models import describe
        found["vocabulary"] = describe(model).config.vocab_size
except ModelLoadError as error:
    found = {"error": str(error)}
print(json.dumps(found))
"""


def model_config(path: str, **changes: object) -> ModelConfig:
    values = {
        "hub": Hub.huggingface,
        "revision": None,
        "init": Init.pretrained,
        "template": None,
        "rope_style": None,
        "recommended_precisions": [],
    }
    return ModelConfig(path=path, **(values | changes))


def repository(pickled: bool) -> dict[str, bytes]:
    files = {name: (GOLDEN / name).read_bytes() for name in ("config.json", "model.safetensors")}
    files |= {
        "modeling_chatglm.py": b"raise SystemExit('never run')\n",
        "consolidated.safetensors": b"a second copy of the weights",
        "README.md": b"# a model\n",
        "pytorch_model.bin": b"not asked for when there are safetensors",
    }
    if pickled:
        import io

        import torch
        from safetensors.torch import load_file

        buffer = io.BytesIO()
        torch.save(load_file(GOLDEN / "model.safetensors"), buffer)
        del files["model.safetensors"]
        files["pytorch_model.bin"] = buffer.getvalue()
    return files


class HubHandler(BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as a snapshot download uses."""

    repositories: dict[str, dict[str, bytes]] = {}  # noqa: RUF012
    requests: list[str] = []  # noqa: RUF012

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.requests.append(f"{self.command} {path}")
        api, name, rest = path.startswith("/api/models/"), "", ""
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        name, rest = "/".join(parts[:2]), "/".join(parts[2:])
        if name == "owner/gated":
            self.answer(403, b"{}", X_Error_Code="GatedRepo")
        elif name not in self.repositories:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        elif api and rest in ("", "revision/main"):
            content = {"id": name, "sha": SHA, "siblings": [{"rfilename": file} for file in self.repositories[name]]}
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")
        elif api and rest == f"tree/{SHA}":
            files = self.repositories[name].items()
            tree = [{"type": "file", "path": file, "size": len(content), "oid": "0" * 40} for file, content in files]
            self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        elif api:
            self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
        else:
            content = self.repositories[name][rest.removeprefix(f"resolve/{SHA}/")]
            self.answer(200, content, ETag=f'"{hash(content)}"', X_Repo_Commit=SHA)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    HubHandler.repositories = {"owner/glm": repository(False), "owner/pickled-glm": repository(True)}
    HubHandler.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def child(tmp_path: Path, endpoint: str, *arguments: str, **variables: str) -> dict[str, object]:
    """What ``locate`` gives in a process whose hub is ``endpoint`` and whose cache is empty at first."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hub"),
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)]),
    } | variables
    path, init, revision, local_only = (*arguments, *["", "pretrained", "", ""][len(arguments) :])
    command = [sys.executable, "-c", CHILD, path, init, revision, local_only]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_mirror_is_asked_and_only_needed_files_come(tmp_path, hub):
    found = child(tmp_path, hub, "owner/glm")
    assert found == {"files": ["config.json", "model.safetensors", "modeling_chatglm.py"], "parameters": 53488}
    assert any("resolve" in request for request in HubHandler.requests)
    assert not any("README" in request or ".bin" in request for request in HubHandler.requests)
    # The other ranks, and a machine without a network, take what is there.
    HubHandler.requests.clear()
    again = child(tmp_path, hub, "owner/glm", "pretrained", "", "local", HF_HUB_OFFLINE="1")
    assert again == found
    assert HubHandler.requests == []


def test_pickled_weights_come_when_there_are_no_safetensors(tmp_path, hub):
    found = child(tmp_path, hub, "owner/pickled-glm")
    assert found == {"files": ["config.json", "modeling_chatglm.py", "pytorch_model.bin"], "parameters": 53488}


def test_random_weights_fetch_none(tmp_path, hub):
    found = child(tmp_path, hub, "owner/glm", "random")
    assert found == {"files": ["config.json", "modeling_chatglm.py"], "vocabulary": 120}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("owner/nothing",), ["no such model", "no such folder", "model.hub"]),
        (("owner/gated",), ["access", "hf auth login"]),
        (("owner/glm", "pretrained", "v9"), ["no revision v9", "model.revision"]),
        (("owner/glm", "pretrained", "", "local"), ["not (wholly) on this machine"]),
    ],
)
def test_what_the_hub_refuses(tmp_path, hub, arguments, words):
    message = str(child(tmp_path, hub, *arguments)["error"])
    assert f"model.path={arguments[0]}" in message
    assert message.count("\n") < 6
    for word in words:
        assert word in message


def test_a_hub_that_cannot_be_reached(tmp_path):
    message = str(child(tmp_path, "http://user:canary@127.0.0.1:9", "owner/glm")["error"])
    assert "cannot be reached" in message
    assert "HF_ENDPOINT" in message
    assert "canary" not in message


def test_credentials_are_not_told():
    assert _without_credentials("https://me:secret@mirror.example:8/x") == "https://mirror.example:8/x"
    assert _without_credentials("https://huggingface.co") == "https://huggingface.co"


def test_local_folders(tmp_path, monkeypatch):
    assert locate(model_config(str(tmp_path))) == tmp_path
    assert located(model_config(str(GOLDEN))) == GOLDEN
    assert (locate(model_config("tiny")) / "config.json").is_file()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate(model_config("~")) == tmp_path


@pytest.mark.parametrize("path", ["./nothing", "/nowhere/at/all", "a/b/c", "nothing here", ""])
def test_a_path_that_is_neither_folder_nor_hub_id(path):
    with pytest.raises(ModelLoadError, match="no such folder"):
        locate(model_config(path))


def test_a_file_is_not_a_folder():
    with pytest.raises(ModelLoadError, match="is a file"):
        locate(model_config(str(GOLDEN / "config.json")))


def test_modelscope_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ModelLoadError, match="pip install modelscope"):
        locate(model_config("ZhipuAI/chatglm2-6b", hub=Hub.modelscope))


def test_modelscope_fetches(monkeypatch, tmp_path):
    asked = []

    def snapshot_download(path: str, **options: object) -> str:
        asked.append((path, options))
        if path == "owner/nothing":
            raise ValueError("no such model\nand a long page of reasons")
        return str(tmp_path)

    module = types.ModuleType("modelscope")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modelscope", module)
    (tmp_path / "model.safetensors").touch()
    assert locate(model_config("ZhipuAI/chatglm2-6b", hub=Hub.modelscope, revision="v1.0")) == tmp_path
    path, options = asked[-1]
    assert path == "ZhipuAI/chatglm2-6b"
    assert options["revision"] == "v1.0"
    assert options["local_files_only"] is False
    assert "model*.safetensors" in options["allow_patterns"]
    with pytest.raises(ModelLoadError, match=r"ValueError: no such model\n") as caught:
        locate(model_config("owner/nothing", hub=Hub.modelscope))
    assert "page of reasons" not in str(caught.value)
