"""The audit of one pipeline: epoch by epoch, partition by partition, in offset order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochline.audit.ending import Ending
from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, Summary
from epochline.audit.last_states import ExpectedAndStates, LastStates
from epochline.audit.reading import RangeReader, flow_of
from epochline.audit.recorded import Erased, Recorded, RecordedEpoch, RecordedRange, comparable, together
from epochline.audit.rows import ExpectedRows, RowDifference, count_by_epoch
from epochline.audit.session import AuditSession, open_session
from epochline.audit.several import SeveralReaders, SeveralReadings
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError
from epochline.kafka.records import ReadSession, RecordReader
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.columns import with_rules
from epochline.protocol.balances import PartitionCounts
from epochline.protocol.planning import HeldLog
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_tables
from epochline.sources.reading import SourceReader, SourceReading

_NEWEST = 2**62

Readers = RecordReader | SourceReader | SeveralReaders
Readings = ReadSession | SourceReading | SeveralReadings


def audit(
    dsn: str,
    source: Readers,
    pipeline: str,
    reporter: Reporter,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Summary:
    """Compare committed epochs with the records that the source has now. Changes nothing but temporary tables.

    It can run next to a live pipeline: it ignores epochs that commit after its start, and compares each target in one
    snapshot. It uses the current version of a declaration's functions. Values are compared in append targets with
    lineage whose rows no transform made. If neither ``first`` nor ``last`` is given, an epoch that a row of an append
    target with lineage names must be committed; rows that name none are counted in the notes.

    Args:
        dsn: libpq URL of the target database.
        source: the pipeline's source, as `epochline.adapters.Adapters.records` gives it.
        pipeline: its name.
        reporter: receives every difference and every epoch.
        first: id of the first epoch, inclusive; None: the oldest.
        last: id of the last epoch, inclusive; None: the newest.

    Raises:
        EpochNotFoundError: the ledger has no committed epoch of the pipeline in that range.
        ConfigurationError: the connection leads to another session in each transaction.
        SourceUnavailableError, LedgerUnavailableError: the source or PostgreSQL does not answer; a retry helps.
    """
    with open_session(dsn) as session:
        return _Audit(session, source, pipeline, reporter).run(first, last)


class _Audit:
    def __init__(self, connection: AuditSession, source: Readers, pipeline: str, reporter: Reporter) -> None:
        self._connection = connection
        self._recorded = Recorded(connection, pipeline)
        self._source = source
        self._pipeline = pipeline
        self._reporter = reporter
        self._summary = Summary()
        self._thinned: set[tuple[int | None, str | None, int | None]] = set()
        """Epoch, topic and partition of the ranges that lost records to compaction."""
        self._broken: dict[int, str] = {}
        """By epoch, the reason why its rows cannot be compared although those of other epochs can."""
        self._erased = Erased(())
        self._states: LastStates

    def run(self, first: int | None, last: int | None) -> Summary:
        with self._connection.snapshot():
            epochs = self._recorded.epochs(first or 0, _NEWEST if last is None else last)
            notes = self._recorded.declared_losses()
        if not epochs:
            raise EpochNotFoundError(f"the ledger has no committed epoch of a pipeline {self._pipeline!r} to audit.")
        self._summary.notes = tuple(notes)
        self._reporter.begin(len(epochs), sum(epoch.offsets for epoch in epochs))
        with self._connection.snapshot():
            newest = self._recorded.declaration(epochs[-1])
            tables = self._tables(newest, epochs[-1])
        whole = first is None and last is None
        states = self._states = LastStates(self._connection, newest, epochs, tables, whole=whole)
        with self._source.session() as session:
            for group in together(epochs):
                self._audit(group, session)
        end = Ending(self._connection, self._recorded, newest, self._summary, self._tell)
        end.compare_last_states(states, epochs)
        if whole:
            end.find_lost()
            end.find_strays()
        if last is None:
            end.compare_states()
        return self._summary

    def _audit(self, group: Sequence[RecordedEpoch], session: Readings) -> None:
        with self._connection.snapshot():
            declared = self._recorded.declaration(group[0])
            ranges = {epoch.epoch_id: self._recorded.ranges(epoch) for epoch in group}
            set_aside = {epoch.epoch_id: self._recorded.set_aside(epoch) for epoch in group}
            self._erased = self._recorded.erased(group)
            sinks = [comparable(self._connection, declared, sink, group[0]) for sink in declared.targets]
            tables = self._tables(declared, group[0])
        # Read again for each group: retention deletes records while an audit runs.
        logs = self._source.held(sorted({planned.topic for of_epoch in ranges.values() for planned in of_epoch}))
        results = {
            epoch.epoch_id: EpochResult(
                epoch_id=epoch.epoch_id,
                kind=epoch.kind,
                generation=epoch.generation,
                superseded=epoch.superseded,
                sinks=[*sinks],
            )
            for epoch in group
        }
        flow, why_not = flow_of(declared, tables)
        self._states.follow(declared, tables, why_not)
        compared = [sink.sink for sink in sinks if sink.said is None and flow is not None]
        columns = {table.sink: table.columns for table in tables if table.sink in compared}
        skipped = {sink.table: sink.key for sink in declared.targets if sink.repeats == "skip"}
        with ExpectedRows(self._connection, columns, skipped) as expected:
            reader = RangeReader(session, flow, ExpectedAndStates(expected, self._states), set_aside)
            for epoch in group:
                result = results[epoch.epoch_id]
                for planned in ranges[epoch.epoch_id]:
                    log = logs.get((planned.topic, planned.partition))
                    result.partitions.append(self._read(result, planned, reader, log))
                if epoch.kind == "requeue":
                    for rows in self._recorded.claimed(epoch):
                        reader.claims(epoch, rows)
                broken = why_not or reader.broken.get(epoch.epoch_id)
                if broken is not None:
                    self._broken[epoch.epoch_id] = broken
                    self._states.leave_out(broken)
            self._compare(results, compared, expected)
        for epoch_id, note in self._erased.notes():
            results[epoch_id].notes.append(note)
        self._count_rows(results, group, declared)
        for epoch in group:
            self._finish(results[epoch.epoch_id], epoch)

    def _tables(self, declared: Pipeline, epoch: RecordedEpoch) -> tuple[StagedTable, ...]:
        with self._connection.cursor() as cursor:
            return with_rules(cursor, staged_tables(declared, epoch.targets, 0, 0))

    def _read(
        self, result: EpochResult, planned: RecordedRange, reader: RangeReader, log: HeldLog | None
    ) -> PartitionResult:
        again = reader.read(result.epoch_id, planned, log)
        self._reporter.advance(len(planned.range))
        if again.found is not None:
            self._summary.records += again.found.received
            if again.whole:
                self._compare_counts(result, planned, again.found, parsed=again.parsed)
        self._states.read(result.epoch_id, planned, whole=again.whole)
        if again.gone:
            self._thinned.add((result.epoch_id, planned.topic, planned.partition))
        return PartitionResult(
            topic=planned.topic, partition=planned.partition, start=planned.range.start, until=planned.range.until,
            ledger=planned.counts, found=again.found, not_judged=again.not_judged,
        )  # fmt: skip

    def _compare_counts(
        self, result: EpochResult, planned: RecordedRange, seen: PartitionCounts, *, parsed: bool
    ) -> None:
        ledger = planned.counts
        counted = {"records read": "received"}
        if parsed:
            counted |= {name: name for name in ("passed", "skipped", "quarantined")}
        counts = [(what, getattr(ledger, name), getattr(seen, name)) for what, name in counted.items()]
        wrong = [f"{what} {was} in the ledger, {now} now" for what, was, now in counts if was != now]
        if wrong:
            self._differs(result, "ledger", "count", f"{planned.range}: {'; '.join(wrong)}", planned)
        if ledger.digest != seen.digest:
            what = f"{planned.range}: source digest {ledger.digest} in the ledger, {seen.digest} now"
            self._differs(result, "ledger", "digest", what, planned)

    def _differs(self, result: EpochResult, where: str, kind: str, what: str, at: RecordedRange | None = None) -> None:
        result.differences += 1
        topic, partition = (at.topic, at.partition) if at else (None, None)
        self._tell(
            Difference(epoch_id=result.epoch_id, where=where, kind=kind, topic=topic, partition=partition, said=what)
        )

    def _compare(self, results: Mapping[int, EpochResult], compared: Sequence[str], expected: ExpectedRows) -> None:
        epochs = [epoch_id for epoch_id in results if epoch_id not in self._broken]
        if not epochs:
            return
        for sink in compared:
            for difference in expected.differences(sink, epochs):
                self._row_differs(results, sink, difference)
        if any(results[epoch_id].kind != "requeue" for epoch_id in epochs):
            for difference in expected.quarantine_differences(self._pipeline, epochs):
                self._row_differs(results, "quarantine", difference)

    def _row_differs(self, results: Mapping[int, EpochResult], where: str, row: RowDifference) -> None:
        thinned = row.kind == "extra" and (row.epoch_id, row.topic, row.partition) in self._thinned
        if thinned or self._erased.explains(where, row.kind, (row.topic, row.partition, row.offset)):
            return
        if row.epoch_id is not None:
            results[row.epoch_id].differences += 1
        fields = row._asdict()
        self._tell(Difference(where=where, said=", ".join(fields.pop("columns")) or None, **fields))

    def _tell(self, difference: Difference) -> None:
        self._summary.differences += 1
        self._reporter.difference(difference)

    def _count_rows(
        self, results: Mapping[int, EpochResult], group: Sequence[RecordedEpoch], declared: Pipeline
    ) -> None:
        """Compare the numbers of sealed rows with those in targets whose values are not compared."""
        for at, sink in enumerate(declared.targets):
            sinks = {epoch.epoch_id: results[epoch.epoch_id].sinks[at] for epoch in group}
            uncompared = [
                epoch
                for epoch in group
                if sinks[epoch.epoch_id].judged and (sinks[epoch.epoch_id].said or epoch.epoch_id in self._broken)
            ]
            if not uncompared or sink.mode != "append" or "_epoch" not in sink.carried_lineage:
                continue
            with self._connection.snapshot():
                gone = find_target(self._connection, sink.table) is None
                sealed = {epoch.epoch_id: self._recorded.sealed_rows(epoch) for epoch in uncompared}
            counts = {} if gone else count_by_epoch(self._connection, sink.table, list(sealed))
            for epoch_id, rows in sealed.items():
                was = rows.get(sink.table, 0) - self._erased.rows(epoch_id, sink.table)
                now = counts.get(epoch_id, 0)
                if was != now:
                    self._differs(results[epoch_id], sink.table, "count", f"{was} rows were sealed, {now} are there")

    def _finish(self, result: EpochResult, epoch: RecordedEpoch) -> None:
        if epoch.kind == "requeue":
            with self._connection.snapshot():
                result.notes.append(f"{self._recorded.claims(epoch)} records by claims, no range")
        broken = self._broken.get(epoch.epoch_id)
        if broken is not None:
            result.sinks = [
                replace(sink, said=f"values not compared: {broken}", judged=False) if sink.said is None else sink
                for sink in result.sinks
            ]
            result.notes.append(f"quarantine not compared: {broken}")
        self._summary.epochs += 1
        self._summary.not_judged += not result.judged
        self._reporter.epoch(result)
