"""Idle partitions over many epochs on a real ledger: how the records are divided into epochs makes none of them late."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg2 import sql

from epochline import EventTime, Json, KafkaSource, Pipeline, PostgresTable, Tumbling, Windowed
from epochline.coordinator import Plan, PlanOutcome
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.job_session import transaction
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochKind
from tests.contract.worlds import end_by_hand, seen_in
from tests.crash.reliability import Recovery
from tests.databases import query
from tests.driver import Driver, epoch_of
from tests.in_memory.kafka import FakeKafka

T0 = datetime(2026, 3, 1, tzinfo=UTC)
COLUMNS = {"ip": "text", "window_start": "timestamptz", "window_end": "timestamptz", "hits": "bigint"}
AN_HOUR = timedelta(hours=1)


class Windows(Driver):
    """A pipeline with windows whose jobs compute the watermark and stage no rows."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.ledger, self.source = dsn, PostgresLedger(dsn), FakeKafka()
        self.times: dict[int, list[datetime]] = {}
        self.late: list[tuple[int, int]] = []
        self.runs = itertools.count(1)
        self.pipeline = Pipeline(
            name="hits", source=KafkaSource(topics="hits"), parse=Json(columns={"ip": "text", "at": "timestamptz"}),
            windows=Windowed(
                time=EventTime(column="at", idle_after=AN_HOUR), window=Tumbling(size=60), key="ip",
                aggregates={"hits": "count(*)"}, into="counted",
            ),
            sinks=PostgresTable(
                table="counted", mode="upsert", key=("ip", "window_start"), columns=COLUMNS, aggregated=True
            ),
        )  # fmt: skip
        self.create()

    def produce(self, *logs: Sequence[float], first: int = 0) -> None:
        """Records of these minutes, by partition, from the first on."""
        for partition, minutes in enumerate(logs, first):
            self.times.setdefault(partition, []).extend(T0 + timedelta(minutes=one) for one in minutes)
            self.source.produce("hits", partition, len(minutes))

    def planned(self, **asked: Any) -> Plan:
        return self.plan(f"run-{next(self.runs)}", **asked)

    def time_passes(self, by: timedelta = 2 * AN_HOUR) -> None:
        """Every epoch so far was planned so much earlier."""
        query(self.dsn, "UPDATE epochline.epoch SET planned_at = planned_at - %s RETURNING 1", by)

    def committed(self, planned: Plan, *, opens: float | None = None) -> None:
        """Stage the epoch as the job does: count, and leave the watermark that the plan and the records give.

        Args:
            planned: the epoch.
            opens: the minute of a window that the epoch leaves open.
        """
        epoch = epoch_of(planned)
        ticket = self.attempt(planned, epoch.run)
        times = read_plan(self.dsn, "hits", epoch.epoch_id, ticket.attempt).times
        assert times is not None
        assert self.pipeline.windows is not None
        seen = {}
        for one in planned.ranges:
            partition, read = one.tp.partition, self.times[one.tp.partition][one.range.start : one.range.until]
            seen["hits", partition] = replace(seen_in(one), newest=max(read))
            if times.watermark is not None:
                self.late += [(partition, at) for at, moment in enumerate(read) if moment < times.watermark]
        after = times.after(self.pipeline.windows.time, {place: one.newest for place, one in seen.items()})
        counts = {table.table: 0 for table in self.pipeline.tables}
        with transaction(self.dsn, ticket.application_name) as session, session.cursor() as cursor:
            if opens is not None:
                ((state, start),) = ((one.table, T0 + timedelta(minutes=opens)) for one in self.pipeline.states)
                counts[state] = 1
                staging = sql.Identifier("epochline_staging", ticket.table(state).table)
                columns = "ip, window_start, window_end, hits, _deleted"
                insert = sql.SQL(f"INSERT INTO {{}} ({columns}) VALUES ('a', %s, %s, 1, false)").format(staging)
                cursor.execute(insert, (start, start + timedelta(minutes=1)))
            end_by_hand(cursor, ticket, counts, seen, after, 0)
        self.seal(ticket, epoch.run)
        self.commit(planned)

    def epoch(self, **asked: Any) -> None:
        self.committed(self.planned(**asked))

    def watermark(self) -> float | None:
        last = "SELECT watermark FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY epoch_id DESC LIMIT 1"
        ((found,),) = query(self.dsn, last)
        return None if found is None else (found - T0) / timedelta(minutes=1)


NewWindows = Callable[[], Windows]


@pytest.fixture
def windows(new_database: Callable[[], str]) -> NewWindows:
    return lambda: Windows(new_database())


in_order = st.lists(st.integers(0, 300), min_size=1, max_size=5).map(sorted)


@pytest.mark.fault("F49")
def test_no_division_into_epochs_makes_a_record_late_that_waited_in_the_log(windows: NewWindows) -> None:
    """E11: each partition is in order; what one epoch reads of another partition does not matter.

    Between epochs more time passes than `idle_after`.
    """
    histories: list[int] = []

    @settings(
        max_examples=6, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        logs=st.lists(in_order, min_size=2, max_size=4),
        limits=st.lists(st.integers(1, 3), min_size=4, max_size=4),
        waits=st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def history(logs: Sequence[Sequence[float]], limits: Sequence[int], waits: Sequence[bool]) -> None:
        line = windows()
        line.produce(*logs)
        for step in itertools.count():
            planned = line.planned(record_limit=limits[step % 4])
            if not planned.ranges:
                break
            line.committed(planned)
            if waits[step % 4]:
                line.time_passes()
        assert line.late == []
        histories.append(step)

    history()
    assert sum(histories) > 6, "histories of several epochs"


@pytest.mark.fault("F49")
def test_a_partition_is_idle_once_its_last_record_is_read(windows: NewWindows) -> None:
    """E11: with records in another epoch, and with none that is left to read."""
    line = windows()
    line.produce([100, 101], [50, 51])

    line.epoch(record_limit=2)  # one of each
    line.time_passes()
    assert line.watermark() == 50
    line.produce([102])
    line.epoch(record_limit=1)
    line.time_passes()
    assert line.watermark() == 50, "a record of the other partition waits"
    for _ in range(3):
        planned = line.planned(record_limit=1)
        if planned.ranges:
            line.committed(planned)
    assert line.late == []

    line.time_passes()
    line.produce([200])
    line.epoch()
    assert line.watermark() == 200, "nothing waits in the silent partition"


@pytest.mark.fault("F49")
def test_records_that_an_open_transaction_holds_back_keep_their_partition_awake(windows: NewWindows) -> None:
    """E11, F23: nobody may read them yet, and their times are not known."""
    line = windows()
    line.produce([100], [50])
    line.committed(line.planned(), opens=150)
    line.time_passes()
    line.produce([200])
    line.times[1].append(T0 + timedelta(minutes=55))
    line.source.change("hits", 1, high_watermark=2)

    line.epoch()

    assert line.watermark() == 50
    line.time_passes()
    assert not line.preview().idle
    assert line.planned().outcome is PlanOutcome.NOTHING_TO_READ
    line.source.change("hits", 1, last_stable=2)
    line.epoch()
    assert (line.late, line.watermark()) == ([], 55)
    line.time_passes()
    assert line.preview().idle
    assert epoch_of(line.planned()).kind is EpochKind.IDLE, "the source is silent, and windows close"


@pytest.mark.fault("F49")
def test_a_partition_that_appears_with_records_holds_the_watermark(windows: NewWindows) -> None:
    line = windows()
    line.produce([100])
    line.epoch()
    line.time_passes()
    line.produce([200], [150, 160])

    line.epoch(record_limit=1)
    assert line.watermark() == 100
    while (planned := line.planned(record_limit=1)).ranges:
        line.committed(planned)
    assert line.late == []
    assert line.watermark() == 160


@pytest.mark.fault("F49")
def test_an_epoch_that_is_taken_up_again_knows_what_waits_by_then(windows: NewWindows, recovery: Recovery) -> None:
    """INV-3: its ranges stay; what was written since then is unread."""
    line = windows()
    line.produce([100], [50])
    line.epoch()
    line.time_passes()
    line.produce([200])
    planned = line.planned()
    epoch = epoch_of(planned)
    line.attempt(planned, epoch.run)
    line.abort(epoch.epoch_id, epoch.run)
    line.produce([60], first=1)
    recovery.last_fault()

    again = line.plan(epoch.run)

    assert again.outcome is PlanOutcome.REOPENED
    line.committed(again)
    assert line.watermark() == 50
    line.epoch()
    assert line.late == []
    recovery.took()
