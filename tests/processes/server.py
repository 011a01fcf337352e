"""A warm interpreter that forks a process per request, which a failpoint may kill or stop.

`python -m tests.processes.server IN OUT` reads requests from one pipe and reports on the other what becomes of their
processes. The server imports the module of a task when the task is first asked for, so later forks have that module.
The server has one thread and no socket, so a forked process inherits neither threads nor connections.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from epochline.failpoints import arm, known_failpoints


@dataclass(frozen=True, kw_only=True)
class Request:
    """One task, and all that its process has from the process that asks for it."""

    number: int
    task: str
    """``MODULE:FUNCTION``"""
    given: bytes
    """Positional and keyword arguments of the function, pickled: the server itself must not import what they need."""
    environment: Mapping[str, str]
    """All environment variables; the process has no others."""
    path: tuple[str, ...]
    """Folders that come first in `sys.path`."""
    folder: Path
    """Where the process writes ``NUMBER.out``, ``NUMBER.err`` and ``NUMBER.answer``."""

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.number}.{kind}"


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened to a process: it started, it stopped, or it ended."""

    number: int
    pid: int
    stopped: bool = False
    returncode: int | None = None


def serve(requests: Connection, events: Connection) -> None:
    """Fork a process for every request until the requests end; then kill the processes that are left."""
    known_failpoints()  # read from the sources once, and not by every process
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    children: dict[int, int] = {}
    while True:
        ready = wait([requests, wake])
        if wake in ready:
            os.read(wake, 4096)
            _report(children, events)
        if requests not in ready:
            continue
        try:
            request: Request = requests.recv()
        except EOFError:
            break
        import_module(request.task.partition(":")[0])
        check_nothing_is_inherited()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (requests, events):
                one.close()
            for end in (wake, waker):
                os.close(end)
            _carry_out(request)
        children[pid] = request.number
        events.send(Event(number=request.number, pid=pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _report(children: dict[int, int], events: Connection) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            events.send(Event(number=children[pid], pid=pid, stopped=True))
        else:
            code = os.waitstatus_to_exitcode(status)
            events.send(Event(number=children.pop(pid), pid=pid, returncode=code))


def check_nothing_is_inherited() -> None:
    """Before a fork: a forked process would have no thread but one, and would share the connections.

    Raises:
        AssertionError: this process has another thread, or a socket.
    """
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"the server has {threads} threads: a module of its tasks starts one when it is imported"
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            file = os.readlink(f"/proc/self/fd/{number}")
            assert not file.startswith("socket:"), "the server has a connection: a module of its tasks opens one"


def _carry_out(request: Request) -> None:
    """Call the task, write its answer or its error, and end this process."""
    _become(request)
    module, _, function = request.task.partition(":")
    try:
        args, options = pickle.loads(request.given)  # noqa: S301 - written by the tests
        answer: dict[str, Any] = {"said": getattr(sys.modules[module], function)(*args, **options)}
    except BaseException as error:
        traceback.print_exc()
        retryable = getattr(error, "retryable", True)
        answer = {"error": type(error).__name__, "message": str(error)[:800], "retryable": retryable}
    # As a fresh interpreter, whose end waits for the threads that are no daemons.
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    request.file("answer").write_bytes(pickle.dumps(answer))
    os._exit(1 if "error" in answer else 0)


def _become(request: Request) -> None:
    """Take the environment, the paths and the outputs of the request."""
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:0] = request.path
    for number, name in ((0, os.devnull), (1, request.file("out")), (2, request.file("err"))):
        opened = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    arm(os.environ)


if __name__ == "__main__":
    # Under the name that the requests are pickled with.
    from tests.processes import server

    given, news = map(int, sys.argv[1:])
    server.serve(Connection(given, writable=False), Connection(news, readable=False))
