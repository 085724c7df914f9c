"""A SwanLab server on 127.0.0.1: answers what one run asks for and keeps what it was sent."""

import json
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from typing import Any

from serving import JsonHandler, serving


class SwanlabServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, refuse: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse = refuse
        self.calls: list[tuple[str, str, Any]] = []
        """Method, path and body of every call but the login."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sent(self, method: str, ending: str) -> list[Any]:
        return [body for asked, path, body in self.calls if asked == method and path.endswith(ending)]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/login/api_key"):
            person = {"name": "Me", "username": "me"}
            return (
                (401, {}) if self.refuse else (200, {"sid": "s", "expiredAt": "2999-01-01T00:00:00.000Z", "userInfo": person})
            )
        self.calls.append((method, path, body))
        if method == "GET" and path.endswith("/project/me/glmexp"):
            project = {"cuid": "p1", "name": "glmexp", "username": "me", "path": "/me/glmexp", "visibility": "PRIVATE"}
            return 200, {**project, "group": {"username": "me"}, "_count": {"experiments": 0}}
        if method == "POST" and path.endswith("/experiment"):
            return 201, {"cuid": body.get("cuid"), "slug": body.get("cuid"), "name": body["name"], "colors": body["colors"]}
        return 200, {}


class Handler(JsonHandler):
    server: SwanlabServer

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        sent = self.body()
        status, content = self.server.answer(self.command, self.path.partition("?")[0], json.loads(sent) if sent else None)
        self.send(content, status)


def swanlab_server(refuse: bool = False) -> AbstractContextManager[SwanlabServer]:
    """``refuse`` answers the login as a server does to a wrong key."""
    return serving(SwanlabServer(refuse))
