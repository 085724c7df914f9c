"""A W&B server on 127.0.0.1: answers what one run asks for and keeps what it was sent."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = {"id": "e1", "name": "me"}


class LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, refuse: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse = refuse
        self.runs: dict[str, dict[str, Any]] = {}
        """Variables of UpsertBucket, by run id."""
        self.streams: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Lines of a streamed file, such as wandb-history.jsonl."""
        return [json.loads(line) for sent in self.streams for line in sent.get("files", {}).get(name, {}).get("content", [])]

    def exit_code(self) -> int | None:
        return next((sent["exitcode"] for sent in self.streams if sent.get("exitcode") is not None), None)

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p1", "name": variables.get("project") or "p", "entity": ENTITY}
        name = variables.get("name") or "run"
        if operation == "UpsertBucket":
            self.runs.setdefault(name, {}).update({key: value for key, value in variables.items() if value is not None})
            bucket = {"id": f"b-{name}", "name": name, "displayName": variables.get("displayName") or name, "config": "{}"}
            bucket |= {"description": None, "historyLineCount": 0, "sweepName": None, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "RunResumeStatus":
            return {"model": {"id": "p1", "name": "p", "entity": ENTITY, "bucket": None}}
        if "iewer" in operation:
            person = {"id": "u1", "entity": "me", "username": "me", "email": "me@example.org", "admin": False}
            return {"viewer": {**person, "flags": "{}", "teams": {"edges": []}}}
        if operation == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.url}/put/{file}"} for file in variables.get("files", [])]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if operation.startswith("Server"):
            return {"serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None}}
        return {}


class Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def body(self) -> bytes:
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        sent = gzip.decompress(sent) if self.headers.get("content-encoding") == "gzip" else sent
        self.server.bodies.append(sent)
        return sent

    def send(self, content: Any, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.send({})

    def do_PUT(self) -> None:
        self.body()
        self.send({})

    def do_POST(self) -> None:
        sent = self.body()
        if self.server.refuse:
            return self.send({"errors": [{"message": "permission denied"}]}, 401)
        if self.path.endswith("/file_stream"):
            self.server.streams.append(json.loads(sent))
            return self.send({"exitcode": None, "limits": {}})
        asked = json.loads(sent)
        named = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        operation = asked.get("operationName") or (named[1] if named else "")
        return self.send({"data": self.server.answer(operation, asked.get("variables") or {})})


@contextmanager
def loopback_server(refuse: bool = False) -> Iterator[LoopbackServer]:
    """``refuse`` answers every question as a server does to a wrong key."""
    with LoopbackServer(refuse) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
