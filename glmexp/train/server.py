"""A process that has imported what ranks need and forks each of them on request: ``python -m glmexp.train.server SOCKET``.

SOCKET is the number of an open socket to the parent (``glmexp.trial.warm``), which both ends write JSON lines to:

    parent   {"id", "arguments", "environ", "log", "folder"}   fork a rank that runs the module arguments[0]
             {"kill": id}                                      end it by SIGKILL
    server   {"ready": true}                                   the imports are done
             {"id", "pid"} or {"id", "error"}                  forked, or not
             {"id", "code"}                                    how it ended; negative: the signal

The server has one thread and no CUDA context, never draws a random number and starts no thread pool: a child finds what a fresh
interpreter with the same imports would. The seed of ``hash(str)`` alone is shared, which nothing may rely on anyway.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from typing import Any

from glmexp.trial.orphan import TAG, die_with_creator, offer_to_the_kernel, wear

PRELOADED = (
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",  # DeepSpeed's engine and optimizers import this and the next when they are built
    "deepspeed.runtime.zero.muon.muon_optimizer",  # draws in torch's compiler
    "deepspeed.comm.mori",
    "peft",
    "setuptools.command.build_ext",  # torch's builder of extensions
    "torch._inductor.compile_fx",
    "torch.utils.cpp_extension",
    "transformers.integrations",
    "transformers.models.glm.modeling_glm",
    "glmexp.config",
    "glmexp.data",
    "glmexp.models.load",
    "glmexp.models.method",
    "glmexp.models.prompts",
    "glmexp.train.metrics.figures",
    "glmexp.train.loop",
    "glmexp.train.metrics.movement",
    "glmexp.train.run",
    "glmexp.train.weights.save",
)
"""What a rank imports sooner or later, and what those leave to their first use."""


class Server:
    """Forks children and tells how they end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.children: dict[int, int] = {}
        """Pid -> id of its order."""
        self._unread = b""

    def serve(self) -> dict[str, Any] | None:
        """Works until the parent hangs up, then ends the children; in a child, returns the order that it is to carry out."""
        wakened, wake = os.pipe()
        os.set_blocking(wakened, False)
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # a signal without a handler wakes nobody
        signal.set_wakeup_fd(wake)
        self.tell(ready=True)
        while (messages := self.read(wakened)) is not None:
            for message in messages:
                if "kill" in message:
                    self.kill(message["kill"])
                elif self.forked(message):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wakened)
                    os.close(wake)
                    return message
            self.reap()
        for number in self.children.values():
            self.kill(number)
        return None

    def read(self, wakened: int) -> list[dict[str, Any]] | None:
        """Waits for the parent or the end of a child; the parent's messages, or None if it has hung up."""
        connection = self.connection.fileno()
        ready = select.select([connection, wakened], [], [])[0]
        if wakened in ready:
            os.read(wakened, 4096)
        if connection not in ready:
            return []
        received = self.connection.recv(1 << 16)
        if not received:
            return None
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def forked(self, order: dict[str, Any]) -> bool:
        """Forks a child for an order; whether this is the child."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(id=order["id"], error=str(error))
            return False
        if pid == 0:
            die_with_creator()
            if os.getppid() != parent:  # which has died before that took effect
                os._exit(1)
            return True
        self.children[pid] = order["id"]
        self.tell(id=order["id"], pid=pid)
        return False

    def kill(self, number: int) -> None:
        for pid, order in self.children.items():
            if order == number:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so that the pid is still its own

    def reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                self.tell(id=number, code=os.waitstatus_to_exitcode(status))

    def tell(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")


def preload() -> None:
    """Imports, and leaves a heap that children share.

    Raises:
        RuntimeError: an import has asked CUDA for something, so that no child could use it.
    """
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # another version's layout: a rank will import what it needs
            importlib.import_module(name)
    if not children_can_use_cuda():
        raise RuntimeError("an import has initialized CUDA")
    gc.collect()
    gc.freeze()  # the collector of a child would otherwise write to, and so copy, every page that holds an object


def children_can_use_cuda() -> bool:
    """Has a child look: there alone PyTorch tells whether its parent spoilt it."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(sys.modules["torch"].cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0


def become(order: dict[str, Any]) -> None:
    """Makes a child what a fresh process of this order would be: session, log, environment, random state, threads."""
    os.setsid()
    offer_to_the_kernel(os.getpid())
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(order["folder"])
    environ: dict[str, str] = order["environ"]
    wear(environ[TAG])
    os.environ.clear()
    os.environ.update(environ)
    import numpy
    import torch

    for seed_anew in (random.seed, numpy.random.seed, torch.default_generator.seed):
        seed_anew()
    threads = environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        torch.set_num_threads(int(threads))


def main() -> None:
    die_with_creator()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        preload()
        order = Server(connection).serve()
    if order is None:
        return
    become(order)
    sys.argv = order["arguments"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
