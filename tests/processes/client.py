"""Processes of the tests' own, forked by a server that has everything imported: see `tests.processes.server`."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from tests.processes.server import Event, Request
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Of the server alone: numpy and pyarrow start threads when they are imported."""


class Forked:
    """A process of the server's; what `subprocess.Popen` has too is named as there.

    Attributes:
        stopped: whether the process stopped itself and nobody let it go on through `send_signal`.
        answer: once the process ended by itself, what its task returned (``said``), or its error.
    """

    def __init__(self, server: ForkServer, request: Request) -> None:
        self._server = server
        self._request = request
        self.pid = 0
        self.stopped = False
        self.returncode: int | None = None
        self.answer: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, or None while the process is alive."""
        self._server.hear()
        return self.returncode

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Wait for the end of the process; its exit code, negative for a signal."""
        self._server.hear_until(lambda: self.returncode is not None, f"{self._request.task} ends", timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_SECONDS) -> tuple[str, str]:
        """Wait for the end of the process; what it wrote to its output and to its error output."""
        self.wait(timeout)
        return self.written("out"), self.written("err")

    def until_stopped(self, timeout: float = PATIENCE_SECONDS) -> Self:
        """Wait until the process stopped itself."""
        task = self._request.task
        self._server.hear_until(lambda: self.stopped or self.returncode is not None, f"{task} stops", timeout)
        assert self.returncode is None, (
            f"{task} ended with {self.returncode} instead of stopping: {self.answer}\n{self.written('err')}"
        )
        return self

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            if number == signal.SIGCONT:
                self.stopped = False
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def written(self, kind: str) -> str:
        """What the process wrote so far, to ``out`` or to ``err``."""
        file = self._request.file(kind)
        return file.read_text() if file.exists() else ""

    def hear(self, event: Event) -> None:
        """Called by the server alone."""
        self.pid = event.pid
        self.stopped = event.stopped
        self.returncode = event.returncode
        file = self._request.file("answer")
        if event.returncode is not None and file.exists():
            self.answer = pickle.loads(file.read_bytes())  # noqa: S301 - written by our own process


class ForkServer:
    """Forks processes; the server starts with the first of them."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Connection
        self._events: Connection
        self._folder: Path
        self._numbers = itertools.count(1)
        self._forked: dict[int, Forked] = {}

    def fork(
        self,
        task: str,
        *args: object,
        kind: type[Forked] = Forked,
        environment: Mapping[str, str] | None = None,
        path: Sequence[str | Path] = (),
        **options: object,
    ) -> Any:
        """Start a process that calls a function; give what it is at.

        Args:
            task: ``MODULE:FUNCTION``.
            args: positional arguments of the function.
            kind: the class of what is given.
            environment: variables, added to those of this process.
            path: folders that come first in `sys.path`.
            options: keyword arguments of the function.
        """
        if self._process is None:
            self._start()
        request = Request(
            number=next(self._numbers), task=task, given=pickle.dumps((args, options)),
            environment={**os.environ, **(environment or {})}, path=tuple(map(str, path)), folder=self._folder,
        )  # fmt: skip
        one = kind(self, request)
        self._forked[request.number] = one
        self._requests.send(request)
        self.hear_until(lambda: one.pid != 0, f"{task} starts", PATIENCE_SECONDS)
        return one

    def hear(self, seconds: float = 0) -> None:
        """Take in what happened to the processes; wait for the first news as long as is given."""
        while self._events.poll(seconds):
            seconds = 0
            try:
                event: Event = self._events.recv()
            except EOFError:
                said = (self._folder / "server.err").read_text()
                self.end()
                raise AssertionError(f"the fork server ended:\n{said}") from None
            self._forked[event.number].hear(event)

    def hear_until(self, happened: Callable[[], bool], what: str, seconds: float) -> None:
        def heard() -> bool:
            self.hear(0 if happened() else 0.2)
            return happened()

        wait_for(what, heard, seconds, every=0)

    def end(self) -> None:
        """Kill what is left; the next process starts another server."""
        self._running.close()
        self._process = None

    def _start(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="epochline-forked-"))
        self._running.callback(shutil.rmtree, folder)
        given, self._requests = Pipe(duplex=False)
        self._events, news = Pipe(duplex=False)
        paths = [str(ROOT / name) for name in ("include", "spark_jobs", "tests/functions", ".")]
        with given, news, (folder / "server.err").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.server", str(given.fileno()), str(news.fileno())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}, pass_fds=(given.fileno(), news.fileno()),
            )  # fmt: skip
        # From the last to the first: the server ends when it can be asked no more.
        for last in (self._events.close, lambda: self._process.wait(30), self._requests.close):
            self._running.callback(last)


fork_server = ForkServer()
"""The one server of a session of tests."""
