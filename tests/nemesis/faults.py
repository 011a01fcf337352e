"""What the nemesis does, and when: decided by the seed alone, before anything starts. Pure."""

import random
from dataclasses import dataclass

from tests.soak.faults import drawn

WEIGHTS = {
    # Of three Kafka nodes
    "node killed": 4, "node frozen": 3, "controller killed": 2, "leader killed": 3,
    # PostgreSQL with a standby
    "primary killed, standby promoted": 1, "PostgreSQL restarted": 2, "connections cut": 4, "standby killed": 1,
    # Spark and Airflow
    "Spark server killed": 2, "Python worker killed": 4, "task killed": 4, "task frozen": 3, "scheduler killed": 2,
    "API server killed": 2, "triggerer and DAG processor killed": 1,
    # People
    "run cleared": 3, "triggered again": 3, "epoch aborted": 3,
}  # fmt: skip
"""How often each kind comes, against the others."""


AT_WORK = 0.75
"""The share of the faults that wait for an unfinished epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: seconds after the start, what, on which of several victims (by number), and for how many seconds.

    ``at_work``: the fault waits until an epoch is unfinished.
    """

    at: float
    kind: str
    victim: int
    seconds: float
    at_work: bool


def schedule(seed: int, seconds: float) -> list[Fault]:
    """The faults of a run: each kind once in a random order, then by weight; none in the last tenth.

    The same arguments give the same schedule. The first faults of a short run come closer together, so that each kind
    comes once.
    """
    chance = random.Random(seed)
    most = min(30.0, seconds / len(WEIGHTS) * 1.15)
    return [
        Fault(
            at=at, kind=kind, victim=chance.randrange(1000), seconds=chance.uniform(1.0, 25.0),
            at_work=chance.random() < AT_WORK,
        )
        for at, kind in drawn(chance, WEIGHTS, seconds, (most / 3, most))
    ]  # fmt: skip
