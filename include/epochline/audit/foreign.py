"""The audit of tables that another program wrote from a topic: Kafka Connect, Spark, Flink, a script. Without a ledger.

A declaration that no DAG runs says how records become rows. The records between two times are read again, and the rows
that they should have given are compared with the table (`epochline.audit.counted_rows`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import record_batch
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.audit.counted_rows import CountedDifference, CountedRows
from epochline.audit.counted_statement import Comparison, Identity
from epochline.audit.reading import flow_of
from epochline.audit.session import AuditSession, open_session
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.inputs import require_kafka
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import ConfigurationError, EpochlineError
from epochline.kafka.records import ReadSession, RecordReader
from epochline.ports import OffsetSource
from epochline.postgres.targets.columns import TargetColumn, columns_of, with_rules
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog
from epochline.protocol.staging_tables import staged_tables

SAMPLE = 1000
"""The most differences of a table that are named; all are counted."""


@dataclass(slots=True, kw_only=True)
class ReadRange:
    """The records of the time in one partition: offsets ``[start, until)``, and how far the log goes now."""

    topic: str
    partition: int
    start: int
    until: int
    log_start: int
    log_end: int
    records: int = 0
    early: int = 0
    """Records of the range with a time before the first one: they are compared, too."""


@dataclass(slots=True, kw_only=True)
class ForeignResult:
    """One table, compared. ``sample`` has at most `SAMPLE` differences; ``not_judged`` says what cannot be told."""

    table: str
    by: str
    rows: int = 0
    """Number of rows that the records give."""
    refused: int = 0
    """Number of records of which the declaration makes none, because it refuses them."""
    totals: Mapping[str, int] = field(default_factory=dict)
    sample: Sequence[CountedDifference] = ()
    not_judged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """Number of rows that are missing, doubled, changed or extra."""
        return sum(self.totals.values())


@dataclass(slots=True, kw_only=True)
class ForeignSummary:
    """What was read, and each table."""

    ranges: list[ReadRange]
    tables: list[ForeignResult]
    not_judged: list[str] = field(default_factory=list)


def audit_foreign(
    dsn: str,
    reader: RecordReader,
    kafka: OffsetSource,
    declared: Pipeline,
    lineage: Mapping[str, str],
    since: datetime,
    until: datetime,
) -> ForeignSummary:
    """Compare the tables of a declaration with the records between two times. Changes nothing but temporary tables.

    Needs SELECT on the tables, and the right to make temporary tables, which PUBLIC has. Whatever reads a table is a
    read-only transaction.

    Args:
        dsn: libpq URL of the database.
        reader: the records of the topics.
        kafka: what knows their offsets.
        declared: one source in Kafka, no transform; tables of mode append or upsert that name their columns.
        lineage: by ``topic``, ``partition``, ``offset`` and ``row`` the columns of the tables that hold them.
        since: time of the first record, inclusive.
        until: time after the last record. The first record of a partition at this time or later ends its range.

    Raises:
        ConfigurationError: the declaration or a table does not fit.
        SourceUnavailableError, LedgerUnavailableError: Kafka or PostgreSQL does not answer; a retry helps.
    """
    if since >= until:
        raise ConfigurationError("the first time must be before the second one.")
    if declared.is_transformed:
        raise ConfigurationError(
            f"{declared.name}: a transform's rows belong to no record; declare what they are made of."
        )
    if not declared.targets:
        raise ConfigurationError(f"{declared.name}: no sink is a table.")
    with open_session(dsn) as session, reader.session() as records:
        return _Audit(session, reader, records, kafka, declared, lineage).run(since, until)


class _Audit:
    def __init__(
        self, connection: AuditSession, reader: RecordReader, records: ReadSession, kafka: OffsetSource,
        declared: Pipeline, lineage: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._connection, self._reader, self._records, self._kafka = connection, reader, records, kafka
        self._declared, self._lineage = declared, lineage
        self._source = require_kafka(declared.name, declared.source, "an audit of such a table")
        self._logs: Mapping[tuple[str, int], HeldLog] = {}

    def run(self, since: datetime, until: datetime) -> ForeignSummary:
        ranges = self._ranges(since, until)
        summary = ForeignSummary(ranges=ranges, tables=[])
        summary.not_judged += [f"{sink}: not compared: no table" for sink in self._declared.post_commit_sinks]
        for at, sink in enumerate(self._declared.targets):
            summary.tables.append(self._table(sink, ranges, since, first=at == 0))
        if until > datetime.now(UTC):
            summary.not_judged.append(f"until {until.isoformat()} records may still come: read to the ends of the logs")
        for one in ranges:
            place = f"{one.topic}-{one.partition}"
            if one.start == one.log_start > 0:
                summary.not_judged.append(
                    f"{place}: not retained: records before offset {one.log_start} may be of the time"
                )
            if self._logs[one.topic, one.partition].compacted:
                summary.not_judged.append(f"{place}: the topic is compacted: records of the time may be gone")
        return summary

    def _ranges(self, since: datetime, until: datetime) -> list[ReadRange]:
        partitions = sorted(self._kafka.readable_ends([self._source]))
        lost = sorted({*self._source.topics} - {tp.topic for tp in partitions})
        if lost or not partitions:
            raise ConfigurationError(f"Kafka has no topic {', '.join(lost) or self._source.described}.")
        starts, ends = (self._kafka.offsets_at(partitions, moment) for moment in (since, until))
        self._logs = self._reader.held(sorted({tp.topic for tp in partitions}))
        ranges = []
        for tp in partitions:
            log = self._logs[tp.topic, tp.partition]
            start, end = (found if found is not None else log.end for found in (starts[tp], ends[tp]))
            ranges.append(
                ReadRange(
                    topic=tp.topic, partition=tp.partition, start=start, until=max(start, end), log_start=log.start,
                    log_end=log.end,
                )
            )  # fmt: skip
        return ranges

    def _table(
        self, sink: PostgresTable, ranges: Sequence[ReadRange], since: datetime, *, first: bool
    ) -> ForeignResult:
        target = self._columns(sink)
        identity = self._identity(sink, target)
        alone = self._declared.model_copy(update={"sinks": (sink,), "state": ()})
        with self._connection.snapshot(read_only=True), self._connection.cursor() as cursor:
            kinds = {sink.table: {name: target[name].kind for name in sink.columns or ()}}
            tables = with_rules(cursor, staged_tables(alone, kinds, 0, 0))
        flow, why_not = flow_of(alone, tables)
        if not isinstance(flow, BatchRows):
            raise ConfigurationError(f"{self._declared.name}: {why_not}")
        # A table may have columns with the names of a lineage, in types of its own.
        columns = {**next(table for table in tables if table.sink == sink.table).columns, **STAGED_LINEAGE}
        how = Comparison(sink, target, sink.columns or (), identity)
        rows = CountedRows(self._connection, sink, target, columns, how)
        result = ForeignResult(table=sink.table, by=str(identity))
        rows.prepare([(one.topic, one.partition, one.start, one.until) for one in ranges])
        for one in ranges:
            self._expect(result, one, flow, rows, since, first=first)
        rows.compare()
        self._judge(result, sink, rows, ranges, flow)
        result.totals, result.sample = rows.totals(), rows.sample(SAMPLE)
        return result

    def _columns(self, sink: PostgresTable) -> dict[str, TargetColumn]:
        if sink.columns is None:
            raise ConfigurationError(f"{sink.table}: name in columns= what is compared.")
        if sink.mode not in ("append", "upsert") or sink.keep_unavailable:
            mode = "keep_unavailable" if sink.keep_unavailable else f"mode {sink.mode!r}"
            raise ConfigurationError(f"{sink.table}: {mode} depends on all records, not on those of a time.")
        with self._connection.snapshot(read_only=True):
            target = columns_of(self._connection, sink.table)
        missing = sorted({*sink.columns, *self._lineage.values()} - {*target})
        if not target or missing:
            lacks = f"has no column {', '.join(missing)}" if target else "does not exist, or the login may not see it"
            raise ConfigurationError(f"the table {sink.table} {lacks}.")
        return target

    def _identity(self, sink: PostgresTable, target: Mapping[str, TargetColumn]) -> Identity:
        places = {f"_{name}": column for name, column in self._lineage.items()}
        if not places and sink.mode == "append" and sink.lineage:
            places = {name: name for name in STAGED_LINEAGE if name in target}
        if {"_partition", "_offset"} <= places.keys():
            if sink.mode != "append":
                raise ConfigurationError(
                    f"{sink.table}: mode {sink.mode!r} is compared by its key; leave --lineage out."
                )
            if "_topic" not in places and len({topic for topic, _ in self._logs}) > 1:
                raise ConfigurationError(f"{sink.table}: several topics are read; say which column has the topic.")
            return Identity(columns={name: places[name] for name in STAGED_LINEAGE if name in places}, by="place")
        if self._lineage:
            raise ConfigurationError("--lineage needs partition and offset, and may have topic and row.")
        if not sink.key or sink.key_is_place:
            raise ConfigurationError(
                f"{sink.table}: declare a key= with repeats=, or say with --lineage which columns hold the place of a"
                " record: nothing else tells which row belongs to which record."
            )
        return Identity(columns={name: name for name in sink.key}, by="key")

    def _expect(
        self, result: ForeignResult, one: ReadRange, flow: BatchRows, rows: CountedRows, since: datetime, *, first: bool
    ) -> None:
        for batch in self._batches(one, one.start, one.until):
            made, refused = _made(flow, batch, rows)
            rows.add(made)
            result.rows += made.num_rows
            result.refused += refused
            if first:
                early = pc.less(batch.column("timestamp"), pa.scalar(since, pa.timestamp("us", "UTC")))
                one.records += batch.num_rows
                one.early += pc.sum(early).as_py() or 0

    def _batches(self, one: ReadRange, start: int, until: int) -> Iterator[pa.RecordBatch]:
        if start < until:
            for columns in self._records.read(one.topic, one.partition, OffsetRange(start=start, until=until)):
                yield record_batch(one.topic, one.partition, columns)

    def _judge(
        self,
        result: ForeignResult,
        sink: PostgresTable,
        rows: CountedRows,
        ranges: Sequence[ReadRange],
        flow: BatchRows,
    ) -> None:
        """Say what the comparison cannot tell, and ask the rest of the logs where that may explain a difference."""
        without = rows.without_place()
        if without:
            result.not_judged.append(f"{without} rows have no place: NULL in a column of it")
        if not rows.by_key:
            return
        if result.refused:
            result.not_judged.append(f"{result.refused} records give no key, because the declaration refuses them")
        result.notes.append("rows are looked for by the keys of these records: a row of no record's key is not seen")
        if not rows.asks_elsewhere:
            return
        for one in ranges:
            before, after = (one.log_start, one.start), (one.until, one.log_end)
            # What is before a range in its partition is overwritten by it, unless another column orders.
            for offsets in (after,) if sink.mode == "upsert" and not sink.order_by else (before, after):
                for batch in self._batches(one, *offsets):
                    rows.elsewhere(_made(flow, batch, rows)[0])
            if one.log_start > 0 and sink.mode == "append":
                where = f"{one.topic}-{one.partition}: keys of records before offset {one.log_start} are unknown"
                result.not_judged.append(f"{where}: a row that is doubled or changed may be of one of them")
        excused = rows.excuse()
        if excused:
            result.not_judged.append(f"{excused} keys: records before or after the time have them, too")


def _made(flow: BatchRows, batch: pa.RecordBatch, rows: CountedRows) -> tuple[pa.RecordBatch, int]:
    """The rows that a batch gives, and how many of its records the declaration refuses."""
    try:
        processed = flow.process(batch)
    except EpochlineError:
        raise
    except Exception as error:  # a pipeline's own function may raise anything
        raise ConfigurationError(f"today's parse fails: {type(error).__name__}: {error}") from error
    return processed.rows[rows.table], processed.quarantine.num_rows
