"""One run of the nemesis: a world, Kafka's producer and consumer, a watcher, faults; then the proof."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.chains import chain_breaks
from tests.nemesis.checker import Acknowledged, Exactness, compare
from tests.nemesis.declared import NAME, PARTITIONS, SHOWN, SOURCE
from tests.nemesis.faults import Fault, schedule
from tests.nemesis.kafka_tools import consuming, producing
from tests.nemesis.strikes import Nemesis, Strike
from tests.nemesis.world import World
from tests.soak.faults import recoveries
from tests.soak.report import DRAIN_SECONDS
from tests.soak.watch import LEFT_OVER
from tests.waiting import idle_seconds

MOST_BETWEEN_COMMITS = 5
"""At most this many faults strike between two commits; then the nemesis waits for a commit."""
PATIENCE_SECONDS = 20.0
"""Seconds that a fault waits for an unfinished epoch. Without one, the fault strikes anyway."""

_SNAPSHOT = """
SELECT (SELECT coalesce(sum(until_offset - start_offset), 0) FROM epochline.committed_range WHERE pipeline = %s),
       (SELECT count(*) FROM numbers), (SELECT coalesce(sum(records), 0) FROM sums),
       (SELECT count(*) FROM epochline.epoch WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED'))
"""
_COMMITS = (
    "SELECT committed_at, records_read FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED' ORDER BY 1"
)
_CHAIN = "SELECT partition, start_offset, until_offset FROM epochline.committed_range WHERE pipeline = %s"
_ATTEMPTS = "SELECT count(*) FILTER (WHERE state IN ('FENCED', 'FAILED')), count(*) FROM epochline.attempts"


@dataclass(kw_only=True)
class Result:
    """What came of a run. ``recovery`` has, by kind of fault, seconds to the next commit."""

    seed: int
    seconds: float
    records: int
    planned: list[Fault]
    strikes: list[Strike] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    snapshots: int = 0
    drained_after: float | None = None
    left: list[str] = field(default_factory=list)
    unacknowledged: int = 0
    sinks: list[Exactness] = field(default_factory=list)
    epochs: int = 0
    fenced: int = 0
    attempts: int = 0
    recovery: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Watch(threading.Thread):
    """Reads table, state and ledger in one snapshot, again and again while everything breaks (INV-2)."""

    def __init__(self, world: World, result: Result) -> None:
        super().__init__(daemon=True)
        self._world, self._result, self._over = world, result, threading.Event()

    def stop(self) -> None:
        """Let the last snapshot end."""
        self._over.set()
        self.join()

    def run(self) -> None:
        took = 0.0
        while not self._over.wait(max(2.0, 5 * took)):  # It counts millions of rows, and is not what is measured.
            begun = time.monotonic()
            for committed, rows, of_state, unfinished in self._world.query(_SNAPSHOT, NAME, NAME):
                self._result.snapshots += 1
                if not committed == rows == of_state or unfinished > 1:
                    self._result.wrong.append(
                        f"{committed} offsets are committed, {rows} rows visible, {of_state} records in the state,"
                        f" {unfinished} epochs unfinished"
                    )
            took = time.monotonic() - begun


def attack(home: Path, *, seed: int, seconds: float, records: int) -> Result:
    """Everything, from empty servers to the verdict. What Kafka's tools printed stays in ``home``."""
    result = Result(seed=seed, seconds=seconds, records=records, planned=schedule(seed, seconds))
    with ExitStack() as opened:
        world = opened.enter_context(World.running(home))
        bootstrap = world.nodes.bootstrap_servers
        rate = round(records / (seconds * 0.9))
        producer = opened.enter_context(producing(home, bootstrap, SOURCE, records=records, per_second=rate))
        consumer = opened.enter_context(consuming(home, bootstrap, SHOWN))
        watch = Watch(world, result)
        watch.start()
        _break(world, result)
        if producer.wait():
            raise RuntimeError(f"the producer ended with {producer.returncode}; {home / 'producer.err'} says why")
        acknowledged = Acknowledged.of(home / "producer.out", records)
        result.unacknowledged = records - len(acknowledged.numbers)
        result.drained_after = _drain(world, result, home / "consumer.out", len(acknowledged.numbers))
        watch.stop()
        if consumer.poll() is not None:
            result.wrong.append("the console consumer ended by itself")
        result.sinks = compare(world, acknowledged, home / "consumer.out")
        _count(world, result)
    return result


def _break(world: World, result: Result) -> None:
    nemesis, begun = Nemesis(world), time.monotonic()

    def passed() -> float:
        return time.monotonic() - begun

    def recovers() -> bool:
        """Whether so many faults struck since the last commit that a slow machine could commit nothing at all."""
        if len(result.strikes) < MOST_BETWEEN_COMMITS or passed() > result.seconds:
            return False
        since = result.strikes[-MOST_BETWEEN_COMMITS].over_at
        return not any(at > since for at, _ in world.query(_COMMITS, NAME))

    def waits(fault: Fault) -> bool:
        return fault.at_work and passed() < fault.at + PATIENCE_SECONDS and world.phase() is None

    for fault in result.planned:
        while passed() < fault.at or recovers() or waits(fault):
            nemesis.mend()
            time.sleep(0.1)
        if passed() > result.seconds:
            break
        strike = nemesis.strike(fault)
        if strike is not None:
            result.strikes.append(strike)
        shown = "met nothing" if strike is None else f"met {strike.phase or 'no epoch'}"
        print(f"{passed():7.1f} s  {fault.kind:<35} {shown}", flush=True)
    nemesis.mend(everything=True)


def _drain(world: World, result: Result, shown: Path, expected: int) -> float | None:
    """Seconds from the last fault until all is committed and shown, and nothing is left over, without help.

    None if the machine stands idle for DRAIN_SECONDS before that.
    """
    idle = idle_seconds()
    while idle_seconds() - idle < DRAIN_SECONDS:
        committed = sum(records or 0 for _, records in world.query(_COMMITS, NAME))
        if committed >= expected and _lines_of(shown) >= expected:
            # An array has a row also where nothing is left: no row says that the ledger did not answer.
            answered = world.query(f"SELECT array({LEFT_OVER})")
            result.left = [left for (some,) in answered for left in some]
            if answered and not result.left:
                return (datetime.now(UTC) - result.strikes[-1].over_at).total_seconds() if result.strikes else 0.0
        time.sleep(1)
    return None


def _lines_of(printed: Path) -> int:
    with printed.open("rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))


def _count(world: World, result: Result) -> None:
    commits = world.query(_COMMITS, NAME)
    result.epochs = sum(bool(records) for _, records in commits)
    [(result.fenced, result.attempts)] = world.query(_ATTEMPTS)
    for strike, after in recoveries(result.strikes, [at for at, _ in commits]):
        result.recovery[strike.kind].append(after)
    links: defaultdict[int, list[tuple[int | None, int]]] = defaultdict(list)
    for partition, start, until in world.query(_CHAIN, NAME):
        links[partition].append((start, until))
    result.wrong += [f"partition {one}: {found}" for one in range(PARTITIONS) for found in chain_breaks(links[one])]
