"""A W&B server on 127.0.0.1: answers what runs, tables and workspaces ask for and keeps what it was sent."""

import gzip
import json
import re
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from typing import Any

from serving import JsonHandler, serving

ENTITY = {"id": "e1", "name": "me"}


class LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""

    def __init__(self, refuse: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse = refuse
        self.runs: dict[str, dict[str, Any]] = {}
        """Variables of UpsertBucket, by run id."""
        self.streams: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.files: dict[str, bytes] = {}
        """Uploads, by path."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Operations with their variables, in order."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Lines of a streamed file, such as wandb-history.jsonl."""
        return [json.loads(line) for sent in self.streams for line in sent.get("files", {}).get(name, {}).get("content", [])]

    def exit_code(self) -> int | None:
        return next((sent["exitcode"] for sent in self.streams if sent.get("exitcode") is not None), None)

    def variables(self, operation: str) -> list[dict[str, Any]]:
        return [variables for name, variables in self.asked if name == operation]

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((operation, variables))
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
        return self.answer_artifact(operation, variables) or self.answer_view(operation, variables)

    def answer_artifact(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """A table is uploaded as an artifact."""
        if operation == "ArtifactType":
            return {"project": {"artifactType": None, "artifact": None}}
        if operation == "CreateArtifact":
            sequence = {"id": "s", "latestArtifact": {"id": "a1", "versionIndex": 0}}
            return {
                "createArtifact": {"artifact": {"id": "a1", "digest": "d", "state": "PENDING", "artifactSequence": sequence}}
            }
        if operation == "CreateArtifactManifest":
            file = {"id": "f", "name": "manifest", "displayName": "m", "uploadUrl": f"{self.url}/put/manifest"}
            return {"createArtifactManifest": {"artifactManifest": {"id": "m1", "file": {**file, "uploadHeaders": []}}}}
        if operation == "CreateArtifactFiles":
            nodes = [
                {
                    **{"id": f"f{at}", "name": file["name"], "displayName": file["name"], "artifact": {"id": "a1"}},
                    **{"uploadUrl": f"{self.url}/put/artifact/{file['name']}", "uploadHeaders": [], "storagePath": "x"},
                    "uploadMultipartUrls": None,
                }
                for at, file in enumerate(variables.get("artifactFiles") or [])
            ]
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        if operation == "CommitArtifact":
            return {"commitArtifact": {"artifact": {"id": "a1", "digest": "d"}}}
        return {}

    def answer_view(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """A workspace is saved as a view of the project."""
        if operation == "UpsertView2":
            return {"upsertView": {"view": {"id": "v1", "name": variables.get("name") or "nw-1-v"}, "inserted": True}}
        return {}


class Handler(JsonHandler):
    server: LoopbackServer

    def body(self) -> bytes:
        sent = super().body()
        sent = gzip.decompress(sent) if self.headers.get("content-encoding") == "gzip" else sent
        self.server.bodies.append(sent)
        return sent

    def do_GET(self) -> None:
        self.send({})

    def do_PUT(self) -> None:
        self.server.files[self.path] = self.body()
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


def loopback_server(refuse: bool = False) -> AbstractContextManager[LoopbackServer]:
    """``refuse`` answers every question as a server does to a wrong key."""
    return serving(LoopbackServer(refuse))
