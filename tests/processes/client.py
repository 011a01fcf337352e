"""Processes of the tests' own, which multiprocessing forks from a server that has everything imported (`tests.processes.warm`)."""

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import psutil

from epochline.failpoints import arm
from tests.waiting import is_stopped, wait_for

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0

_FORKS = multiprocessing.get_context("forkserver")
_PATHS = [str(ROOT / name) for name in ("include", "spark_jobs", "tests/functions", ".")]
_OF_THE_SERVER = {
    "PYTHONPATH": os.pathsep.join(_PATHS),
    # numpy and pyarrow start threads when they are imported.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


class Forked:
    """A process that calls a function; what `subprocess.Popen` has too is named as there.

    Args:
        folder: where the process writes its outputs and its answer.
        task: ``MODULE:FUNCTION``.
        given: positional and keyword arguments of the function.
        environment: all variables of the process.
        path: folders that come first in `sys.path`.
    """

    def __init__(
        self, folder: Path, task: str, given: tuple[Any, Any], environment: Mapping[str, str], path: Sequence[str]
    ) -> None:
        self._files = folder
        self._task = task
        self._process = _FORKS.Process(target=_carry_out, args=(folder, task, pickle.dumps(given), environment, path))
        self._process.start()
        self._returncode: int | None = None
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        self.wait()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process is alive."""
        if self._returncode is None and self._process.exitcode is not None:
            self._returncode = self._process.exitcode
            self._process.close()
        return self._returncode

    def poll(self) -> int | None:
        return self.returncode

    @property
    def answer(self) -> dict[str, Any]:
        """Once the process ended by itself: what its task returned (``said``), or its error."""
        file = self._files / "answer"
        answer: dict[str, Any] = pickle.loads(file.read_bytes()) if file.exists() else {}  # noqa: S301 - our own
        return answer

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        wait_for(f"{self._task} ends", lambda: self.returncode is not None, timeout, every=0.005)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_SECONDS) -> tuple[str, str]:
        """Wait for the end of the process; what it wrote to its output and to its error output."""
        self.wait(timeout)
        return self.written("out"), self.written("err")

    def until_stopped(self, timeout: float = PATIENCE_SECONDS) -> Self:
        def stopped() -> bool:
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(self.pid).status() == psutil.STATUS_STOPPED and is_stopped(self.pid):
                    return True
            return self.returncode is not None

        wait_for(f"{self._task} stops", stopped, timeout, every=0.005)
        assert self.returncode is None, (
            f"{self._task} ended with {self.returncode} instead of stopping: {self.answer}\n{self.written('err')}"
        )
        return self

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def written(self, kind: str) -> str:
        """What the process wrote so far, to ``out`` or to ``err``."""
        file = self._files / kind
        return file.read_text() if file.exists() else ""


class ForkServer:
    """Forks processes, and ends those that are left."""

    def __init__(self) -> None:
        self._forked: list[Forked] = []
        self._folder: Path | None = None

    def fork(
        self, task: str, *args: object, kind: type[Forked] = Forked, environment: Mapping[str, str] | None = None,
        path: Sequence[str | Path] = (), **options: object,
    ) -> Any:  # fmt: skip
        """Start a process that calls a function; give what it is at.

        Args:
            task: ``MODULE:FUNCTION``.
            args: positional arguments of the function.
            kind: the class of what is given.
            environment: variables, added to those of this process.
            path: folders that come first in `sys.path`.
            options: keyword arguments of the function.
        """
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="epochline-forked-"))
            # Where its socket lies: a folder of multiprocessing's own would be removed with the worker's, and then again.
            vars(multiprocessing.current_process())["_config"]["tempdir"] = tempfile.gettempdir()
            with patch.dict(os.environ, _OF_THE_SERVER):
                forkserver.set_forkserver_preload(["tests.processes.warm"])
                forkserver.ensure_running()
        folder = self._folder / str(len(self._forked))
        folder.mkdir()
        every = {**os.environ, **(environment or {})}
        self._forked.append(kind(folder, task, (args, options), every, tuple(map(str, path))))
        return self._forked[-1]

    def end(self) -> None:
        for process in self._forked:
            process.kill()
            process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._forked, self._folder = [], None


def _carry_out(folder: Path, task: str, given: bytes, environment: Mapping[str, str], path: Sequence[str]) -> None:
    """Call the task in a process that has nothing of the one before, and write its answer or its error."""
    check_nothing_is_inherited()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = path
    for number, name in enumerate((os.devnull, str(folder / "out"), str(folder / "err"))):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    arm(os.environ)
    module, _, function = task.partition(":")
    try:
        args, options = pickle.loads(given)  # noqa: S301 - written by the tests
        answer: dict[str, Any] = {"said": getattr(import_module(module), function)(*args, **options)}
    except BaseException as error:
        traceback.print_exc()
        retryable = getattr(error, "retryable", True)
        answer = {"error": type(error).__name__, "message": str(error)[:800], "retryable": retryable}
    (folder / "answer").write_bytes(pickle.dumps(answer))
    sys.exit(1 if "error" in answer else 0)


def check_nothing_is_inherited() -> None:
    """A forked process would have no thread of its server but one, and would share the server's connections.

    Raises:
        AssertionError: the server has another thread, or this process a socket.
    """
    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    assert threads == 1, f"the server has {threads} threads: a module that it imports starts one"
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            file = os.readlink(f"/proc/self/fd/{number}")
            assert not file.startswith("socket:"), "the server has a connection: a module that it imports opens one"


fork_server = ForkServer()
