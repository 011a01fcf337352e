"""Which faults a soak makes, and when: decided by the seed alone, before anything starts. Pure."""

import random
from dataclasses import dataclass

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
    kinds = list(_WEIGHTS)
    first = chance.sample(kinds, len(kinds))
    faults: list[Fault] = []
    at = chance.uniform(*_PAUSE)
    while at < seconds * 0.9:
        kind = first.pop() if first else chance.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        phase, victim = chance.choice(PHASES), chance.randrange(1000)
        faults.append(Fault(at=at, kind=kind, phase=phase, victim=victim, seconds=chance.uniform(1.0, 4.0)))
        at += chance.uniform(*_PAUSE)
    return faults
