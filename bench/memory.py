"""The memory of a process and everything that it started, for every measurement."""

import threading
from types import TracebackType
from typing import Self

import psutil

_EVERY_SECONDS = 0.2


def alone(process: psutil.Process) -> int:
    """Bytes in memory of one process. What several processes share is divided among them. Nothing if it has ended."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def held(pid: int) -> int:
    """Bytes in memory of a process and of everything that it started."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(alone(one) for one in family)


class Peak:
    """The most memory that a process and its children held during a block, in bytes: ``most``."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid = pid
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, held(self._pid))
            if self._over.wait(_EVERY_SECONDS):
                return
