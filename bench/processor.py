"""The processor's time of processes, for every measurement."""

from collections.abc import Iterable

import psutil


def seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Seconds that processes spent, with those of ended children that they waited for."""
    spent = 0.0
    for one in set(processes):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent
