"""The audit of one pipeline: epoch by epoch, partition by partition, in offset order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg2
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, SinkResult, Summary
from epochline.audit.reading import RangeReader, flow_of
from epochline.audit.recorded import Recorded, RecordedEpoch, RecordedRange, together
from epochline.audit.rows import ExpectedRows, RowDifference, count_by_epoch, strays
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.declare.text_settings import UTF8
from epochline.errors import ConfigurationError, EpochNotFoundError
from epochline.kafka.records import ReadSession
from epochline.kafka.topic_logs import TopicLogs
from epochline.postgres.queries.driver_errors import explained
from epochline.postgres.queries.session_settings import set_local
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.claims import missing_rows
from epochline.postgres.targets.columns import with_rules
from epochline.protocol.log_ends import HeldLog
from epochline.protocol.offsets import PartitionCounts
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_tables
from epochline.sources.reading import SourceReader, SourceReading

_NEWEST = 2**62


def audit(
    dsn: str,
    source: TopicLogs | SourceReader,
    pipeline: str,
    reporter: Reporter,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Summary:
    """Compare committed epochs with the records that the source has now. Changes nothing but temporary tables.

    It can run next to a live pipeline: it ignores epochs that commit after its start, and compares each target in one
    snapshot. It uses the current version of a declaration's functions. If neither ``first`` nor ``last`` is given,
    every row of a target must name a committed epoch.

    Args:
        dsn: libpq URL of the target database.
        source: the pipeline's source, as `epochline.sinks.adapters.Adapters.records_of` gives it.
        pipeline: its name.
        reporter: receives every difference and every epoch.
        first: id of the first epoch; None: the oldest.
        last: id of the last epoch, inclusive; None: the newest.

    Raises:
        EpochNotFoundError: the ledger has no committed epoch of the pipeline in that range.
        ConfigurationError: the connection leads to another session in each transaction.
        SourceUnavailableError, LedgerUnavailableError: the source or PostgreSQL does not answer; a retry helps.
    """
    with _session(dsn) as connection:
        return _Audit(connection, source, pipeline, reporter).run(first, last)


class _OneSession:
    """Applies the audit's settings in each transaction, and refuses a connection that changes its session.

    The expected rows are in temporary tables, which exist in one session only.
    """

    _settings = set_local({"lock_timeout": 30_000})

    def __init__(self) -> None:
        self._session: int | None = None

    def begin(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._settings)
        session = int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        if self._session not in (None, session):
            raise ConfigurationError(
                "the audit needs one session of the server, but its connection leads to another session in each"
                " transaction, as a pooler in transaction mode does. Give it a direct connection to PostgreSQL."
            )
        self._session = session


@contextmanager
def _session(dsn: str) -> Iterator[Connection]:
    engine = create_engine(
        make_url(dsn).set(drivername="postgresql+psycopg2"),
        poolclass=NullPool,
        isolation_level="REPEATABLE READ",
        connect_args={
            "application_name": "epochline audit",
            "connect_timeout": 10,
            **UTF8,
        },
    )
    event.listen(engine, "begin", _OneSession().begin)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise explained(error.orig) from error
    except psycopg2.Error as error:
        raise explained(error) from error
    finally:
        engine.dispose()


@dataclass(slots=True)
class _Epoch:
    """Findings so far about an epoch under audit."""

    recorded: RecordedEpoch
    partitions: list[PartitionResult] = field(default_factory=list)
    sinks: list[SinkResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broken: str | None = None
    """Reason why the rows of this epoch alone cannot be compared."""
    differences: int = 0


class _Audit:
    def __init__(
        self, connection: Connection, source: TopicLogs | SourceReader, pipeline: str, reporter: Reporter
    ) -> None:
        self._connection = connection
        self._recorded = Recorded(connection, pipeline)
        self._source = source
        self._pipeline = pipeline
        self._reporter = reporter
        self._summary = Summary()
        self._thinned: set[tuple[int | None, str | None, int | None]] = set()
        """Epoch, topic and partition of the ranges that lost records to compaction."""

    def run(self, first: int | None, last: int | None) -> Summary:
        with self._connection.begin():
            epochs = self._recorded.epochs(first or 0, _NEWEST if last is None else last)
            notes = self._recorded.declared_losses()
        if not epochs:
            raise EpochNotFoundError(f"the ledger has no committed epoch of a pipeline {self._pipeline!r} to audit.")
        self._summary.notes = tuple(notes)
        self._reporter.begin(len(epochs), sum(epoch.offsets for epoch in epochs))
        with self._source.session() as session:
            for group in together(epochs):
                self._audit(group, session)
        if first is None and last is None:
            self._find_lost(epochs[-1])
            self._find_strays(epochs[-1])
        if last is None:
            self._compare_states(epochs[-1])
        return self._summary

    def _audit(self, group: Sequence[RecordedEpoch], session: ReadSession | SourceReading) -> None:
        with self._connection.begin():
            declared = self._recorded.declaration(group[0])
            ranges = {epoch.epoch_id: self._recorded.ranges(epoch) for epoch in group}
            set_aside = {epoch.epoch_id: self._recorded.set_aside(epoch) for epoch in group}
            sinks = [self._comparable(declared, sink, group[0]) for sink in declared.targets]
            tables = self._tables(declared, group[0])
        # Read again for each group: retention deletes records while an audit runs.
        logs = self._source.held(sorted({one.topic for of_epoch in ranges.values() for one in of_epoch}))
        states = {epoch.epoch_id: _Epoch(epoch, sinks=list(sinks)) for epoch in group}
        flow, why_not = flow_of(declared, tables)
        compared = [one.sink for one in sinks if one.said is None and flow is not None]
        columns = {table.sink: table.columns for table in tables if table.sink in compared}
        skipped = {sink.table: sink.key for sink in declared.targets if sink.repeats == "skip"}
        with ExpectedRows(self._connection, columns, skipped) as expected:
            reader = RangeReader(session, flow, expected, set_aside)
            for epoch_id, state in states.items():
                for one in ranges[epoch_id]:
                    state.partitions.append(self._read(state, one, reader, logs.get((one.topic, one.partition))))
                if state.recorded.kind == "requeue":
                    for rows in self._recorded.claimed(state.recorded):
                        reader.claims(state.recorded, rows)
                state.broken = why_not or reader.broken.get(epoch_id)
            self._compare(states, compared, expected)
        self._count_rows(states, declared)
        for state in states.values():
            self._finish(state)

    def _tables(self, declared: Pipeline, epoch: RecordedEpoch) -> tuple[StagedTable, ...]:
        """Staging tables of the epoch, with the current rules of the targets."""
        driver: Any = self._connection.connection.dbapi_connection
        with closing(driver.cursor()) as cursor:
            return with_rules(cursor, staged_tables(declared, epoch.targets, 0, 0))

    def _comparable(self, declared: Pipeline, sink: PostgresTable, epoch: RecordedEpoch) -> SinkResult:
        """Tell whether the rows of a target can be compared by value; ``said`` is None if they can."""
        said, judged = None, True
        if declared.is_transformed:
            said = "a transform made the rows"
        elif sink.mode != "append":
            said = f"mode {sink.mode} keeps no row per record"
        elif not sink.lineage:
            said = "declared with lineage=False"
        else:
            target = find_target(self._connection, sink.table)
            wanted = {**epoch.targets.get(sink.table, {}), **sink.added_columns}
            if target is None:
                said, judged = "the table is gone", False
            else:
                now = {name: column.kind for name, column in target.columns.items()}
                altered = sorted(name for name, kind in wanted.items() if now.get(name) != kind)
                if altered:
                    said, judged = f"since the epoch the table's columns changed: {', '.join(altered)}", False
        return SinkResult(sink=sink.table, said=said and f"values not compared: {said}", judged=judged)

    def _read(self, state: _Epoch, one: RecordedRange, reader: RangeReader, log: HeldLog | None) -> PartitionResult:
        """Read what the source has of one range and compare its counts."""
        again = reader.read(state.recorded, one, log)
        self._reporter.advance(len(one.range))
        if again.found is not None:
            self._summary.records += again.found.received
            if again.whole:
                self._compare_counts(state, one, again.found, parsed=again.parsed)
        if again.gone:
            self._thinned.add((state.recorded.epoch_id, one.topic, one.partition))
        return PartitionResult(
            topic=one.topic,
            partition=one.partition,
            start=one.range.start,
            until=one.range.until,
            ledger=one.counts,
            found=again.found,
            not_judged=again.not_judged,
        )

    def _compare_counts(self, state: _Epoch, one: RecordedRange, seen: PartitionCounts, *, parsed: bool) -> None:
        ledger = one.counts
        pairs = [("records read", ledger.received, seen.received)]
        if parsed:
            pairs += [
                ("passed", ledger.passed, seen.passed),
                ("skipped", ledger.skipped, seen.skipped),
                ("quarantined", ledger.quarantined, seen.quarantined),
            ]
        wrong = [f"{what} {was} in the ledger, {now} now" for what, was, now in pairs if was != now]
        if wrong:
            self._differs(state, where="ledger", kind="count", at=one, said=f"{one.range}: {'; '.join(wrong)}")
        if ledger.digest != seen.digest:
            said = f"{one.range}: source digest {ledger.digest} in the ledger, {seen.digest} now"
            self._differs(state, where="ledger", kind="digest", at=one, said=said)

    def _differs(self, state: _Epoch, *, where: str, kind: str, at: RecordedRange | None, said: str) -> None:
        state.differences += 1
        self._tell(
            Difference(
                epoch_id=state.recorded.epoch_id,
                where=where,
                kind=kind,
                topic=at.topic if at else None,
                partition=at.partition if at else None,
                said=said,
            )
        )

    def _compare(self, states: Mapping[int, _Epoch], compared: Sequence[str], expected: ExpectedRows) -> None:
        epochs = [epoch_id for epoch_id, state in states.items() if state.broken is None]
        if not epochs:
            return
        for sink in compared:
            for found in expected.differences(sink, epochs):
                self._row_differs(states, sink, found)
        requeues = all(states[epoch_id].recorded.kind == "requeue" for epoch_id in epochs)
        if not requeues:
            for found in expected.quarantine_differences(self._pipeline, epochs):
                self._row_differs(states, "quarantine", found)

    def _row_differs(self, states: Mapping[int, _Epoch], where: str, found: RowDifference) -> None:
        if found.kind == "extra" and (found.epoch_id, found.topic, found.partition) in self._thinned:
            return
        if found.epoch_id is not None:
            states[found.epoch_id].differences += 1
        self._tell(
            Difference(
                epoch_id=found.epoch_id,
                where=where,
                kind=found.kind,
                topic=found.topic,
                partition=found.partition,
                offset=found.offset,
                row=found.row,
                said=", ".join(found.columns) or None,
            )
        )

    def _tell(self, difference: Difference) -> None:
        self._summary.differences += 1
        self._reporter.difference(difference)

    def _count_rows(self, states: Mapping[int, _Epoch], declared: Pipeline) -> None:
        """Compare the numbers of sealed rows with those in targets whose values are not compared."""
        for at, sink in enumerate(declared.targets):
            uncompared = [
                epoch_id
                for epoch_id, state in states.items()
                if state.sinks[at].judged and (state.sinks[at].said or state.broken)
            ]
            if not uncompared or sink.mode != "append" or "_epoch" not in sink.carried_lineage:
                continue
            with self._connection.begin():
                gone = find_target(self._connection, sink.table) is None
                sealed = {one: self._recorded.sealed_rows(states[one].recorded) for one in uncompared}
            found = {} if gone else count_by_epoch(self._connection, sink.table, uncompared)
            for one in uncompared:
                was, now = sealed[one].get(sink.table, 0), found.get(one, 0)
                if was != now:
                    said = f"{was} rows were sealed, {now} are there"
                    self._differs(states[one], where=sink.table, kind="count", at=None, said=said)

    def _find_lost(self, newest: RecordedEpoch) -> None:
        """Find targets that are not the tables that epochs wrote, and rows that are missing whatever their values."""
        with self._connection.begin():
            declared = self._recorded.declaration(newest)
            for sink in declared.targets:
                why = missing_rows(self._connection, declared, sink)
                if why is not None:
                    self._tell(Difference(epoch_id=None, where=sink.table, kind="missing", said=why))

    def _find_strays(self, newest: RecordedEpoch) -> None:
        with self._connection.begin():
            declared = self._recorded.declaration(newest)
            sinks = [
                sink.table
                for sink in declared.targets
                if sink.mode == "append" and "_offset" in sink.carried_lineage
                and (target := find_target(self._connection, sink.table)) is not None
                and set(sink.added_columns) <= set(target.columns)
            ]  # fmt: skip
        for sink in sinks:
            without = 0
            for found in strays(self._connection, sink, self._pipeline):
                if found.epoch_id is None:
                    without += 1
                else:
                    self._row_differs({}, sink, found._replace(epoch_id=None))
            if without:
                said = f"{sink}: {without} rows name no epoch: another program wrote them, or they were there before"
                self._summary.notes += (said,)

    def _compare_states(self, newest: RecordedEpoch) -> None:
        """Read each state table whole and compare it with what the last epoch left, whatever its triggers counted."""
        with self._connection.begin():
            declared = self._recorded.declaration(newest)
            standings = {state.table: self._recorded.state(state.table) for state in declared.states}
        for table, standing in standings.items():
            said = "the table is gone" if standing.now is None else standing.difference
            if said is not None:
                epoch_id = standing.left_by
                self._tell(
                    Difference(epoch_id=epoch_id, where=table, kind="changed", topic=None, partition=None, said=said)
                )

    def _finish(self, state: _Epoch) -> None:
        epoch = state.recorded
        if epoch.kind == "requeue":
            with self._connection.begin():
                state.notes.append(f"{self._recorded.claims(epoch)} records by claims, no range")
        if state.broken is not None:
            state.sinks = [
                replace(sink, said=f"values not compared: {state.broken}", judged=False) if sink.said is None else sink
                for sink in state.sinks
            ]
            state.notes.append(f"quarantine not compared: {state.broken}")
        result = EpochResult(
            epoch_id=epoch.epoch_id,
            kind=epoch.kind,
            generation=epoch.generation,
            superseded=epoch.superseded,
            partitions=tuple(state.partitions),
            sinks=tuple(state.sinks),
            notes=tuple(state.notes),
            differences=state.differences,
        )
        self._summary.epochs += 1
        self._summary.not_judged += not result.judged
        self._reporter.epoch(result)
