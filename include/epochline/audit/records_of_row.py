"""Reads the ranges of a row's epochs again, the newest first, and tells the records of its key."""

from collections.abc import Callable
from dataclasses import replace

from epochline.audit.matching import Matched, MatchingRecords
from epochline.audit.reading import RangeReader, flow_of
from epochline.audit.recorded import Recorded, RecordedEpoch
from epochline.audit.rows import ExpectedRows
from epochline.audit.session import AuditSession, open_session
from epochline.declare.pipeline import Pipeline
from epochline.kafka.records import RecordReader
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.columns import columns_of, with_rules
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.staging_tables import staged_tables
from epochline.protocol.why import RowOrigin, Why
from epochline.sources.reading import SourceReader


def records_of_row(
    dsn: str, source: RecordReader | SourceReader, declared: Pipeline, why: Why, origin: RowOrigin, most: int,
    advance: Callable[[int], None],
) -> Matched:  # fmt: skip
    """The records with the key of a row that names none, in the epochs of its scope.

    Each epoch's records are parsed by its own declaration where the login may read it, and else by ``declared``; by
    today's functions in both cases. Records that an epoch set aside are left out.

    Args:
        dsn: libpq URL of the ledger's database.
        source: the pipeline's only source.
        declared: its declaration.
        why: the answer to which the row belongs.
        origin: the row; it has a scope, and `cannot_match` found no obstacle.
        most: how many records to keep, the newest ones.
        advance: receives the number of offsets of each range that was read.

    Raises:
        SourceError: the source does not answer, or refuses.
        LedgerError, LedgerUnavailableError: PostgreSQL refuses, or cannot be reached.
    """
    with open_session(dsn) as session:
        return _Search(session, source, declared, why, origin, most, advance).run()


def differing_columns(
    dsn: str, source: RecordReader | SourceReader, why: Why, origin: RowOrigin
) -> tuple[str, ...]:  # fmt: skip
    """The columns in which a row of mode append or upsert differs from what its record gives by today's parse.

    Empty if there are none, and where that cannot be told: the record is gone or was requeued, or a transform made the
    row. The login is the ledger's. Raises as `records_of_row`.
    """
    record, epoch = origin.record, origin.epoch
    if record is None or epoch is None or why.mode not in ("append", "upsert"):
        return ()
    with open_session(dsn) as session:
        recorded = Recorded(session, why.pipeline)
        with session.snapshot(), session.cursor() as cursor:
            of_row = recorded.epochs(epoch["epoch_id"], epoch["epoch_id"])[0]
            declared, ranges = recorded.declaration(of_row), recorded.ranges(of_row)
            aside = {of_row.epoch_id: recorded.set_aside(of_row)}
            sink = next((sink for sink in declared.targets if sink.table == why.table), None)
            if sink is None or declared.is_transformed or sink.keep_unavailable or of_row.kind == "requeue":
                return ()
            tables = with_rules(cursor, staged_tables(declared, of_row.targets, 0, 0))
            there = columns_of(session, why.table)
        flow, _ = flow_of(declared, tables)
        staged = next(table.columns for table in tables if table.sink == why.table)
        compared = {name: kind for name, kind in staged.items() if name in there}
        logs = source.held([record.topic])
        with source.session() as reading, ExpectedRows(session, {why.table: compared}, {}) as expected:
            reader = RangeReader(reading, flow, expected, aside)
            for planned in ranges:
                read, (first, until) = planned.range, (planned.range.start, planned.range.until)
                if (planned.topic, planned.partition) != (record.topic, record.partition):
                    expected.leave_out(planned.topic, planned.partition, first, until)
                elif read.start <= record.offset < read.until:
                    expected.leave_out(planned.topic, planned.partition, first, record.offset)
                    expected.leave_out(planned.topic, planned.partition, record.offset + 1, until)
                    only = OffsetRange(start=record.offset, until=record.offset + 1)
                    log = logs.get((planned.topic, planned.partition))
                    reader.read(of_row.epoch_id, replace(planned, range=only), log)
            if reader.broken:
                return ()
            found = [one for one in expected.differences(why.table, [of_row.epoch_id]) if one.row == record.row]
    return tuple(name for one in found if one.kind == "changed" for name in one.columns)


class _Search:
    def __init__(
        self, session: AuditSession, source: RecordReader | SourceReader, declared: Pipeline, why: Why,
        origin: RowOrigin, most: int, advance: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._session, self._source, self._declared, self._advance = session, source, declared, advance
        self._why, self._origin, self._most = why, origin, most
        self._recorded = Recorded(session, why.pipeline)
        self._declarations = {declared.declaration_hash: declared}

    def run(self) -> Matched:
        with self._session.snapshot():
            epochs, owner = self._epochs(), run(self._session, "reader_rights").one().is_owner
            columns = columns_of(self._session, self._why.table)
        records = MatchingRecords(self._session, self._declared, self._origin, columns, self._most)
        records.prepare()
        notes: list[str] = []
        scope = self._origin.scope
        logs = self._source.held(sorted({read["topic"] for read in scope.ranges} if scope else ()))
        with self._source.session() as reading:
            for epoch in epochs:
                with self._session.snapshot():
                    ranges = self._recorded.ranges(epoch)
                    aside = {epoch.epoch_id: self._recorded.set_aside(epoch)}
                    declared = self._declaration(epoch) if owner else self._declared
                flow, broken = flow_of(declared, ())
                reader = RangeReader(reading, flow, records, aside)
                for planned in ranges:
                    log = logs.get((planned.topic, planned.partition))
                    again = reader.read(epoch.epoch_id, planned, log)
                    notes += [f"{planned.topic}-{planned.partition}: {note}" for note in again.not_judged]
                    self._advance(len(planned.range))
                if epoch.kind == "requeue" and owner:
                    for rows in self._recorded.claimed(epoch):
                        reader.claims(epoch, rows)
                elif epoch.kind == "requeue":
                    notes.append(f"epoch {epoch.epoch_id} read quarantined records, which this login may not see")
                broken = broken or reader.broken.get(epoch.epoch_id)
                if broken is not None:
                    notes.append(f"epoch {epoch.epoch_id}: its records are not told: {broken}")
        return records.matched(notes)

    def _epochs(self) -> list[RecordedEpoch]:
        scope = self._origin.scope
        bounds = {"first": 0, "last": 0} if scope is None else {"first": scope.first, "last": scope.last}
        rows = run(self._session, "epochs_between", pipeline=self._why.pipeline, **bounds)
        return [RecordedEpoch(**row, superseded=False, offsets=0, targets={}) for row in rows.mappings()]

    def _declaration(self, epoch: RecordedEpoch) -> Pipeline:
        if epoch.declaration_hash not in self._declarations:
            self._declarations[epoch.declaration_hash] = self._recorded.declaration(epoch)
        return self._declarations[epoch.declaration_hash]
