"""A server for warm starts that imports torch alone. It takes LIGHT_SERVER_SECONDS longer for it and says so in a file."""

import os
import time
from pathlib import Path

from glmexp.train import server

server.PRELOADED = ("torch",)
preload = server.preload


def slow_preload() -> None:
    if "LIGHT_SERVER_SECONDS" in os.environ:
        Path("server_is_slow").touch()
        time.sleep(float(os.environ["LIGHT_SERVER_SECONDS"]))
    preload()


if __name__ == "__main__":
    server.preload = slow_preload
    server.main()
