"""Which faults a soak makes, and when: decided by the seed alone, before anything starts. Pure."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Protocol, TypeVar

PHASES = ("plan", "begin", "stage", "seal", "commit", "publish")
"""Phases of an epoch in which a plain task can be caught."""

SERVERS = ("postgres restarted", "broker killed", "broker stopped")
"""Faults that hit every task at work."""

ON_TASKS = ("task killed", "task stopped", "connections cut")
"""Faults that wait for a task in the phase that the schedule names."""

BY_OPERATORS = ("aborted", "run cleared", "triggered twice", "backfill")
"""What people do, in the middle of all that."""

_WEIGHTS = {
    **dict.fromkeys(ON_TASKS, 6), **dict.fromkeys(BY_OPERATORS, 2), **dict.fromkeys(SERVERS, 1),
}  # fmt: skip

_PAUSE = (2.0, 6.0)
"""Shortest and longest time between two faults, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: seconds after the start, what, in which phase, on which pipeline (by number), and for how long."""

    at: float
    kind: str
    phase: str
    victim: int
    seconds: float


def schedule(seed: int, seconds: float) -> list[Fault]:
    """The faults of a soak: each kind once in a random order, then by weight; none in the soak's last tenth.

    Same arguments, same schedule.
    """
    chance = random.Random(seed)
    faults: list[Fault] = []
    for at, kind in drawn(chance, _WEIGHTS, seconds, _PAUSE):
        phase, victim = chance.choice(PHASES), chance.randrange(1000)
        faults.append(Fault(at=at, kind=kind, phase=phase, victim=victim, seconds=chance.uniform(1.0, 4.0)))
    return faults


def drawn(
    chance: random.Random, weights: Mapping[str, float], seconds: float, pause: tuple[float, float]
) -> Iterator[tuple[float, str]]:
    """When faults come, and of which kind: each once in a random order, then by weight; none in the last tenth.

    ``pause`` is the shortest and the longest time between two, in seconds.
    """
    first = chance.sample(list(weights), len(weights))
    at = chance.uniform(*pause)
    while at < seconds * 0.9:
        yield at, first.pop() if first else chance.choices(list(weights), list(weights.values()))[0]
        at += chance.uniform(*pause)


class Over(Protocol):
    """A fault that struck."""

    @property
    def over_at(self) -> datetime:
        """When it was over."""


F = TypeVar("F", bound=Over)


def recoveries(faults: Iterable[F], commits: Sequence[datetime]) -> Iterator[tuple[F, float]]:
    """Per fault the seconds to the next commit; of several before that commit, the last counts (I7)."""
    ordered = sorted(faults, key=lambda fault: fault.over_at)
    for fault, following in zip_longest(ordered, ordered[1:]):
        after = next((at for at in commits if at >= fault.over_at), None)
        if after is not None and not (following is not None and following.over_at < after):
            yield fault, (after - fault.over_at).total_seconds()
