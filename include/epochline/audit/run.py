"""The audit of one pipeline: epoch by epoch, partition by partition, in offset order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from epochline.arrow.stage.again import RowsAgain, RunAgain
from epochline.audit.again import TransformsAgain
from epochline.audit.ending import Ending
from epochline.audit.findings import Difference, EpochResult, PartitionResult, Reporter, Summary
from epochline.audit.following import FollowingSinks, KafkaSettings
from epochline.audit.last_states import LastStates
from epochline.audit.made_rows import MadeRows
from epochline.audit.reading import Expected, ExpectedOfAll, RangeReader, flow_of, miscounted
from epochline.audit.recorded import (
    Erased,
    Recorded,
    RecordedEpoch,
    RecordedRange,
    comparable,
    together,
    without_inexact,
)
from epochline.audit.rows import ExpectedRows, RowDifference, count_by_epoch
from epochline.audit.session import AuditSession, open_session
from epochline.audit.several import Readers, Readings
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochNotFoundError
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.columns import with_rules
from epochline.protocol.planning import HeldLog
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_external, staged_tables

_NEWEST = 2**62


def audit(
    dsn: str,
    source: Readers,
    pipeline: str,
    reporter: Reporter,
    *,
    kafka_settings: KafkaSettings | None = None,
    first: int | None = None,
    last: int | None = None,
    run_again: RunAgain | None = None,
) -> Summary:
    """Compare committed epochs with the records that the source has now. Changes nothing but temporary tables.

    It can run next to a live pipeline: it ignores epochs that commit after its start, and compares each target in one
    snapshot. It uses the current version of a declaration's functions. If all epochs are audited, one that a row of an
    append target names must be committed; rows that name none are counted in the notes.

    Args:
        dsn: libpq URL of the target database.
        source: the pipeline's source, as `epochline.adapters.Adapters.records` gives it.
        pipeline: its name.
        reporter: receives every difference and every epoch.
        kafka_settings: gives the settings of a connection's brokers; without it no topic of a sink is compared.
        first: id of the first epoch, inclusive; None: the oldest.
        last: id of the last epoch, inclusive; None: the newest.
        run_again: runs a transform or windows again; None: their rows are not compared.

    Raises:
        EpochNotFoundError: the ledger has no committed epoch of the pipeline in that range.
        ConfigurationError: the connection leads to another session in each transaction.
        SourceUnavailableError, LedgerUnavailableError: the source or PostgreSQL does not answer; a retry helps.
    """
    with open_session(dsn) as session:
        return _Audit(session, source, pipeline, reporter, kafka_settings, run_again).run(first, last)


class _Audit:
    def __init__(
        self, connection: AuditSession, source: Readers, pipeline: str, reporter: Reporter,
        settings: KafkaSettings | None, run_again: RunAgain | None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._recorded = Recorded(connection, pipeline)
        self._source = source
        self._pipeline = pipeline
        self._reporter = reporter
        self._settings, self._run_again = settings, run_again
        self._summary = Summary()
        self._thinned: set[tuple[int | None, str | None, int | None]] = set()
        """Epoch, topic and partition of the ranges that lost records to compaction."""
        self._broken: dict[int, str] = {}
        """By epoch, the reason why its rows cannot be compared although those of other epochs can."""
        self._not_made: dict[int, str] = {}
        """By epoch, the reason why its transform's rows cannot be told."""
        self._erased = Erased(())
        self._states: LastStates
        self._again: TransformsAgain
        self._following: FollowingSinks

    def run(self, first: int | None, last: int | None) -> Summary:
        with self._connection.snapshot():
            epochs = self._recorded.epochs(first or 0, _NEWEST if last is None else last)
            ends = last is None or not self._recorded.epochs(last + 1, _NEWEST)
            notes = self._recorded.declared_losses()
        if not epochs:
            raise EpochNotFoundError(f"the ledger has no committed epoch of a pipeline {self._pipeline!r} to audit.")
        self._summary.notes = tuple(notes)
        self._reporter.begin(len(epochs), sum(epoch.offsets for epoch in epochs))
        with self._connection.snapshot():
            newest = self._recorded.declaration(epochs[-1])
            tables = self._tables(newest, epochs[-1])
        begins = (first or 0) <= 1  # epochs are numbered from 1
        states = self._states = LastStates(self._connection, newest, epochs, tables, first=begins, last=ends)
        self._again = TransformsAgain(self._connection, self._recorded, self._run_again, epochs, first=begins)
        whole = begins and ends
        self._following = FollowingSinks(self._connection, newest, self._settings, self._tell, whole=whole)
        with self._source.session() as session:
            for group in together(epochs):
                self._audit(group, session)
        end = Ending(self._connection, self._recorded, newest, self._summary, self._tell)
        end.compare_ledger(epochs)
        end.compare_last_states(states, epochs)
        self._following.finish()
        self._summary.notes += tuple(self._following.notes)
        self._summary.not_judged_targets += tuple(self._following.why_not)
        if whole:
            end.find_lost()
            end.find_strays()
        if ends:
            end.compare_states()
        if newest.is_transformed and self._summary.differences:
            self._summary.notes += (
                "rows of a transform also differ if its code is another one today, or if it is not deterministic",
            )
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
        self._following.follow(declared)
        compared = [sink.sink for sink in sinks if sink.said is None and flow is not None]
        plain = () if declared.is_transformed else compared
        columns = {table.sink: table.columns for table in tables if table.sink in plain}
        skipped = {sink.table: sink.key for sink in declared.targets if sink.repeats == "skip"}
        made = MadeRows(self._connection, declared, group[0], tables, compared if declared.is_transformed else ())
        with ExpectedRows(self._connection, columns, skipped) as expected:
            takers = ExpectedOfAll(expected, self._following, self._states, made)
            keeps = declared.is_transformed and flow is not None and self._again.cannot(declared) is None
            reader = RangeReader(session, flow, takers, set_aside, keeps=keeps)
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
                    self._states.leave_out(epoch.epoch_id, broken)
                if declared.is_transformed:
                    self._make(results[epoch.epoch_id], declared, tables, epoch, reader.take_parsed(), takers)
            self._compare(results, plain, expected)
            self._compare_made(results, made)
        self._following.settle(group, results, self._broken | self._not_made, dict(self._erased.notes()))
        for epoch_id, note in self._erased.notes():
            results[epoch_id].notes.append(note)
        self._count_rows(results, group, declared)
        for epoch in group:
            self._finish(results[epoch.epoch_id], epoch, declared)

    def _make(
        self, result: EpochResult, declared: Pipeline, tables: Sequence[StagedTable], epoch: RecordedEpoch,
        parsed: RowsAgain, takers: Expected,
    ) -> None:  # fmt: skip
        """Take the rows that an epoch's transform should have given, or note why they cannot be told."""
        rows = self._why_not_again(result, epoch) or self._again.rows(declared, tables, epoch, parsed, takers.sinks)
        if isinstance(rows, str):
            self._not_made[epoch.epoch_id] = rows
            self._again.lose(declared, epoch)
            self._states.leave_out(epoch.epoch_id, rows)
            return
        for sink in takers.sinks & set(rows):
            for batch in rows[sink]:
                takers.add(sink, epoch.epoch_id, batch)

    def _why_not_again(self, result: EpochResult, epoch: RecordedEpoch) -> str | None:
        if epoch.epoch_id in self._broken:
            return self._broken[epoch.epoch_id]
        if self._erased.requeued(epoch.epoch_id):
            return "records that it requeued were erased"
        if any(part.not_judged or part.found is None for part in result.partitions):
            return "not all of its records are held"
        return "its records, or today's parse of them, are others than the epoch's" if result.differences else None

    def _compare_made(self, results: Mapping[int, EpochResult], made: MadeRows) -> None:
        for found in made.differences([epoch_id for epoch_id in results if epoch_id not in self._not_made]):
            if not self._erased.accounts_for(found):
                if found.epoch_id is not None:
                    results[found.epoch_id].differences += 1
                self._tell(found)

    def _tables(self, declared: Pipeline, epoch: RecordedEpoch) -> tuple[StagedTable, ...]:
        with self._connection.cursor() as cursor:
            return with_rules(cursor, staged_tables(declared, epoch.targets, 0, 0)) + staged_external(declared)

    def _read(
        self, result: EpochResult, planned: RecordedRange, reader: RangeReader, log: HeldLog | None
    ) -> PartitionResult:
        again = reader.read(result.epoch_id, planned, log)
        self._reporter.advance(len(planned.range))
        if again.found is not None:
            self._summary.records += again.found.received
            if again.whole:
                for kind, what in miscounted(planned, again.found, parsed=again.parsed):
                    self._differs(result, "ledger", kind, what, planned)
        self._states.read(result.epoch_id, planned, whole=again.whole)
        if again.gone:
            self._thinned.add((result.epoch_id, planned.topic, planned.partition))
        return PartitionResult(
            topic=planned.topic, partition=planned.partition, start=planned.range.start, until=planned.range.until,
            ledger=planned.counts, found=again.found, not_judged=again.not_judged,
        )  # fmt: skip

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
        self._tell(row.told(where))

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
                if sinks[epoch.epoch_id].said or epoch.epoch_id in self._broken | self._not_made
            ]
            if not uncompared or sink.mode != "append" or "_epoch" not in sink.carried_lineage:
                continue
            with self._connection.snapshot():
                target = find_target(self._connection, sink.table)
                sealed = {epoch.epoch_id: self._recorded.sealed_rows(epoch) for epoch in uncompared}
            if target is None or "_epoch" not in target.columns:
                continue
            counts = count_by_epoch(self._connection, sink.table, list(sealed))
            for epoch_id, rows in sealed.items():
                was = rows.get(sink.table, 0) - self._erased.rows(epoch_id, sink.table)
                now = counts.get(epoch_id, 0)
                if was != now:
                    self._differs(results[epoch_id], sink.table, "count", f"{was} rows were sealed, {now} are there")

    def _finish(self, result: EpochResult, epoch: RecordedEpoch, declared: Pipeline) -> None:
        if epoch.kind == "requeue":
            with self._connection.snapshot():
                result.notes.append(f"{self._recorded.claims(epoch)} records by claims, no range")
        broken = self._broken.get(epoch.epoch_id)
        why = broken or self._not_made.get(epoch.epoch_id)
        if why is not None:
            result.sinks = [
                replace(sink, said=f"values not compared: {why}", judged=False) if sink.said is None else sink
                for sink in result.sinks
            ]
        result.sinks = [without_inexact(declared, sink, epoch) for sink in result.sinks]
        if broken is not None:
            result.notes.append(f"quarantine not compared: {broken}")
        self._summary.epochs += 1
        self._summary.not_judged += not result.judged
        self._reporter.epoch(result)
