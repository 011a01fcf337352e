"""Lets time pass in a ledger, without waiting."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tests.contract.worlds import World
from tests.databases import query
from tests.in_memory.ledger import FakeLedger


@dataclass
class Clock:
    """The fake's clock is set; on PostgreSQL what has happened is moved back."""

    world: World
    let_pass: Callable[[float], None]
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.let_pass(seconds)


def clock_of_fake(world: World, ledger: FakeLedger) -> Clock:
    passed = [datetime(2026, 1, 1, tzinfo=UTC)]
    ledger.now = lambda: passed[0]

    def turn(seconds: float) -> None:
        passed[0] += timedelta(seconds=seconds)

    return Clock(world, turn)


def clock_of_postgres(world: World, dsn: str) -> Clock:
    def move_back(seconds: float) -> None:
        ago = f"make_interval(secs => {seconds})"
        query(dsn, f"UPDATE epochline.epoch SET planned_at = planned_at - {ago}, committed_at = committed_at - {ago}")
        query(dsn, f"UPDATE epochline.epoch SET lease_until = lease_until - {ago}")
        query(dsn, f"UPDATE epochline.attempt SET ended_at = ended_at - {ago}")

    return Clock(world, move_back)
