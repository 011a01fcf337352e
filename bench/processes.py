"""The memory and the processor's time of processes, for every measurement."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import psutil

from epochline.local.stack import Stack


def seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Seconds that processes spent, with those of ended children that they waited for."""
    spent = 0.0
    for process in set(processes):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def alone(process: psutil.Process) -> int:
    """Bytes in memory of one process. What several processes share is divided among them. Nothing if it has ended."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def family(pid: int | None) -> list[psutil.Process]:
    """A process and everything that it started; nothing if it has ended."""
    try:
        return [] if pid is None else [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def seconds_of_stack(stack: Stack) -> dict[str, float]:
    """Seconds that each server of a stack spent, with everything that it started."""
    daemons = {
        "postgres": stack.postgres.daemon, "kafka": stack.kafka.daemon, "spark": stack.spark.daemon,
        **stack.airflow.daemons,
    }  # fmt: skip
    return {part: seconds_of(family(daemon.pid)) for part, daemon in daemons.items()}


def held(pid: int) -> int:
    """Bytes in memory of a process and of everything that it started."""
    return sum(map(alone, family(pid)))


@contextmanager
def peaks(look: Callable[[], Mapping[str, int]], every: float = 0.2) -> Iterator[Counter[str]]:
    """The most of each figure that a thread sees during the block; it looks every so many seconds."""
    most: Counter[str] = Counter()
    over = threading.Event()

    def watch() -> None:
        while True:
            for name, figure in look().items():
                most[name] = max(most[name], figure)
            if over.wait(every):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()
