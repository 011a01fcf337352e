"""Windows of event time over epochs, from Kafka into PostgreSQL: closed, corrected, too late, idle, and crashed at."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from epochline import EventTime, Json, PostgresTable, Tumbling, Windowed
from epochline.coordinator import PlanOutcome
from epochline.protocol.epoch import EpochKind
from tests.crash.reliability import Recovery
from tests.integration.spark.conftest import Records, Runs, Servers

T0 = datetime(2026, 3, 1, tzinfo=UTC)
RECORD = {"ip": "text", "at": "timestamptz"}
HITS = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def hits(*seconds: float, ip: str = "a") -> list[bytes]:
    return [json.dumps({"ip": ip, "at": at(second).isoformat()}).encode() for second in seconds]


class Counted(Runs):
    """Hits per address and window."""

    def hits(self) -> dict[tuple[str, float], int]:
        found = self.database.query("SELECT ip, window_start, hits FROM hits")
        return {(ip, (start - T0).total_seconds()): count for ip, start, count in found}

    def changes(self) -> list[tuple[int, float, bool, int]]:
        """Rows of an append target of changes: epoch, start of the window, flag, hits."""
        found = self.database.query("SELECT _epoch, window_start, added, hits FROM changes ORDER BY 1, 2, 3")
        return [(epoch, (start - T0).total_seconds(), added, count) for epoch, start, added, count in found]

    def open_windows(self) -> list[tuple[str, float]]:
        found = self.database.query("SELECT ip, window_start FROM hits_open ORDER BY 1, 2")
        return [(ip, (start - T0).total_seconds()) for ip, start in found]

    def left(self) -> list[tuple[float | None, int]]:
        """Per committed epoch the watermark that it left, and how many records came too late."""
        found = self.database.query(
            "SELECT watermark, records_too_late FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY epoch_id"
        )
        return [(None if mark is None else (mark - T0).total_seconds(), late) for mark, late in found]


NewCounted = Callable[..., Counted]


@pytest.fixture
def counted(servers: Servers) -> NewCounted:
    results = PostgresTable(
        table="hits", mode="upsert", key=("ip", "window_start"), columns=HITS, aggregated=True, before_images=10
    )

    def make(records: Records, *, size: float, time: EventTime, **windows: Any) -> Counted:
        declared = Windowed(
            time=time, window=Tumbling(size=size), key="ip", aggregates={"hits": "count(*)"}, into="hits",
            too_late="late_hits", **windows,
        )  # fmt: skip
        return Counted(servers, servers.pipeline(
            servers.topic(records), parse=Json(columns=RECORD), windows=declared,
            sinks=[results, PostgresTable(table="late_hits", columns=RECORD)], bad_records="quarantine",
        ))  # fmt: skip

    return make


@pytest.mark.fault("F32")
def test_windows_close_are_corrected_and_take_nothing_that_comes_too_late(
    counted: NewCounted, recovery: Recovery
) -> None:
    """E5, X21, INV-6: late by the watermark before the epoch, closed by the one after; a second attempt is the same."""
    run = counted(
        {0: [*hits(1, 3), *hits(9, ip="b"), b'{"ip": "a"}'], 1: hits(2, 8)},
        size=5, time=EventTime(column="at", out_of_orderness=2), lateness=5,
    )  # fmt: skip
    first = run.epoch()
    assert (run.hits(), first.counts.quarantined) == ({("a", 0): 3}, 1)

    run.produce({0: hits(4)})
    run.crash()
    assert run.hits() == {("a", 0): 3}
    recovery.last_fault()
    run.epoch()
    assert run.hits() == {("a", 0): 4}
    recovery.took()
    assert run.open_windows() == [("a", 0), ("a", 5), ("b", 5)]

    run.epoch({0: hits(20, ip="b"), 1: hits(21)})
    assert run.hits() == {("a", 0): 4, ("a", 5): 1, ("b", 5): 1}
    assert run.open_windows() == [("a", 20), ("b", 20)]

    run.epoch({1: hits(3)})
    assert run.hits() == {("a", 0): 4, ("a", 5): 1, ("b", 5): 1}
    assert run.database.query("SELECT ip, at, _partition, _offset FROM late_hits") == [("a", at(3), 1, 3)]
    assert run.left() == [(6, 0), (6, 0), (18, 0), (18, 1)]


@pytest.mark.fault("F32")
def test_windows_of_an_idle_source_close_in_an_epoch_that_reads_nothing(counted: NewCounted) -> None:
    """E11: a partition without a record holds nothing back, and time passes without records too."""
    run = counted({0: hits(1), 1: []}, size=2, time=EventTime(column="at", idle_after=1))
    run.epoch()
    assert (run.hits(), run.left()) == ({}, [(1, 0)])
    time.sleep(1.5)  # by the database's clock the source is idle after one second, and the window over
    assert run.preview().idle

    planned, who = run.planned()
    assert planned.epoch is not None
    assert (planned.epoch.kind, planned.ranges) == (EpochKind.IDLE, ())
    run.committed(planned, who)

    assert run.hits() == {("a", 0): 1}
    ((mark, late),) = run.left()[1:]
    assert (mark is not None and mark >= 2, late) == (True, 0)
    assert run.planned()[0].outcome is PlanOutcome.NOTHING_TO_READ
    assert not run.preview().idle


def test_a_correction_takes_the_former_result_back_and_adds_the_new_one(servers: Servers) -> None:
    """N5: (true, first), then for a late record (false, first), (true, second); a second attempt gives no third row."""
    run = Counted(servers, servers.pipeline(
        servers.topic({0: hits(1, 3, 8)}), parse=Json(columns=RECORD),
        windows=Windowed(
            time=EventTime(column="at"), window=Tumbling(size=5), key="ip", aggregates={"hits": "count(*)"},
            into="changes", lateness=5, retractions="added",
        ),
        sinks=PostgresTable(table="changes", columns={**HITS, "added": "boolean"}, aggregated=True),
    ))  # fmt: skip
    run.epoch()
    assert run.changes() == [(1, 0, True, 2)]

    run.produce({0: hits(4)})
    run.crash()
    run.epoch()

    assert run.changes() == [(1, 0, True, 2), (3, 0, False, 2), (3, 0, True, 3)]
    run.epoch({0: hits(20)})
    run.epoch({0: hits(4)})
    assert run.changes()[3:] == [(4, 5, True, 1)], "a window whose lateness is over is corrected no more"


def test_a_record_that_carries_the_watermark_closes_its_windows_in_its_own_epoch(servers: Servers) -> None:
    """N6, INV-6: the least of the partitions' counts, beside the periodic ones; a second attempt has the same mark."""

    def marked(second: float, mark: float | None) -> bytes:
        return json.dumps({"ip": "a", "at": at(second).isoformat(), "mark": mark and at(mark).isoformat()}).encode()

    run = Counted(servers, servers.pipeline(
        servers.topic({0: [marked(1, None), marked(3, 5)], 1: [marked(2, None)]}),
        parse=Json(columns={**RECORD, "mark": "timestamptz"}),
        windows=Windowed(
            time=EventTime(column="at", out_of_orderness=60, punctuation="mark"), window=Tumbling(size=5), key="ip",
            aggregates={"hits": "count(*)"}, into="hits",
        ),
        sinks=PostgresTable(table="hits", mode="upsert", key=("ip", "window_start"), columns=HITS, aggregated=True),
    ))  # fmt: skip
    run.epoch()
    assert (run.hits(), run.left()) == ({}, [(-58, 0)]), "the other partition carried none"

    run.produce({1: [marked(4, 7)]})
    run.crash()
    run.epoch()
    assert (run.hits(), run.left()[-1]) == ({("a", 0): 4}, (5, 0)), "the window closes with the epoch of its mark"

    run.epoch({0: [marked(100, 2)], 1: [marked(4, None), marked(101, None)]})
    assert run.hits() == {("a", 0): 4}
    assert run.left()[-1] == (40, 1), "an older mark takes nothing back, and the periodic watermark goes on"


def test_a_restore_puts_windows_and_watermark_back(counted: NewCounted) -> None:
    """C12, E7: what had been too late is in time again, and going on gives the same results."""
    run = counted({0: hits(1, 3)}, size=5, time=EventTime(column="at"))
    run.epoch()
    run.operate("savepoint", name="before")
    run.epoch({0: hits(2, 12)})
    run.epoch({0: hits(4)})
    assert (run.hits(), run.left()) == ({("a", 0): 3}, [(3, 0), (12, 0), (12, 1)])

    run.operate("restore", name="before")

    assert (run.hits(), run.open_windows()) == ({}, [("a", 0)])
    run.epoch()
    assert run.left()[-2:] == [(3, None), (12, 0)]
    assert run.hits() == {("a", 0): 4}
