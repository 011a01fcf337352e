"""Waiting until something that goes on elsewhere has come about, and processes that may end at any moment."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def idle_seconds() -> float:
    """How long the processors that this process may use have stood idle since the machine's start: their mean."""
    every = psutil.cpu_times(percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
    idle: list[float] = [every[processor].idle for processor in usable]
    return sum(idle) / len(idle)


def wait_for(what: str, check: Callable[[], Any], seconds: float = 60.0, every: float = 0.02) -> Any:
    """Ask until the answer is true, and give the answer.

    The wait ends when nothing moves any more: only time in which the processors stand idle counts. So a slow or busy
    machine may take as long as it needs. The test's own time-out (tests/tiers.py) ends a wait beside endless work.

    Raises:
        AssertionError: the answer was not true, and the machine stood idle for ``seconds``.
    """
    began, idle = time.monotonic(), idle_seconds()
    while not (answer := check()):
        assert idle_seconds() - idle < seconds, (
            f"within {time.monotonic() - began:.0f} s, of which the machine stood idle for {seconds:.0f} s, it did not"
            f" happen that {what}"
        )
        time.sleep(every)
    return answer


def wait_until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for a condition that says by itself what is waited for."""
    wait_for("the condition holds", holds, seconds)


def is_stopped(pid: int) -> bool:
    """Whether each thread of a process has stopped. On a busy machine they go on for a while."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            states.append(stat.read_text().rpartition(") ")[2][0])
    return set(states) <= {"T", "Z", "X"}


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and wait until each thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(f"every thread of process {pid} has stopped", lambda: is_stopped(pid), every=0.002)


def stop_family(root: psutil.Process) -> list[psutil.Process]:
    """Stop a process and its descendants.

    A process is stopped before its children are listed: it starts none any more, and one that ends stays as a zombie.
    """
    stop_process(root.pid)
    return [root, *(one for child in root.children() for one in stop_family(child))]


def resume_family(family: list[psutil.Process]) -> None:
    """Let go on what ``stop_family`` gave: the children first, as a parent forgets those that have ended."""
    for one in reversed(family):
        with suppress(psutil.NoSuchProcess):  # killed since
            one.resume()


def arguments_of(process: psutil.Process) -> str:
    """The command line of a process; one that has ended has none."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
