"""What a pipeline makes of records, without a ledger or a target: rows, refusals and the number of skipped records."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochline.arrow.cast.calendar import to_python
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.rows import TOMBSTONE
from epochline.declare.columns import DELETED
from epochline.declare.pipeline import Pipeline
from epochline.protocol.staging_tables import staged_external, staged_tables

_PLACE = ("_topic", "_partition", "_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record that the epoch would refuse or quarantine, and the reason."""

    topic: str
    partition: int
    offset: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ParsedRecords:
    """The result of a parse."""

    read: int = 0
    skipped: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The parsed rows with their lineage; a true ``_deleted`` deletes the key of an upsert target."""
    refused: list[RefusedRecord] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    """The parsed rows as a transform gets them."""


class RecordParser:
    """Parses records as an epoch does, sinks' own checks included, and keeps the results; runs no ``transform``.

    A bad record is a refusal under both policies. Rules that only the target's database knows are not checked. Raises
    `DeclarationError` if a function cannot be imported.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        # Under the policy `fail` the first bad record would hide the others.
        lenient = pipeline.model_copy(update={"bad_records": "quarantine"})
        columns = {sink.table: sink.columns or lenient.parsed_columns for sink in lenient.tables}
        # The columns that such a select gives are known to the target alone.
        unknown = {sink.table for sink in lenient.tables if sink.columns is None and sink.select is not None}
        tables = [table for table in staged_tables(lenient, columns, 0, 0) if table.sink not in unknown]
        self._flow = BatchRows(lenient.spec, [*tables, *staged_external(lenient)])
        self.result = ParsedRecords()

    def add(self, batch: pa.RecordBatch) -> None:
        """Parse a batch of records; raises `EpochlineError` if the parse or a ``select`` broke its contract."""
        rows, refused, counts = self._flow.parse_only(batch)
        deleted: set[tuple[Any, ...]] = set()
        if not self._flow.transformed:
            processed = self._flow.process(batch)
            refused, deleted = processed.quarantine, _deleted(processed.rows.values())
        records = [
            RefusedRecord(topic=row["topic"], partition=row["partition"], offset=row["offset"], reason=row["reason"])
            for row in refused.select(["topic", "partition", "offset", "reason"]).to_pylist()
        ]
        gone = {(record.topic, record.partition, record.offset) for record in records}
        columns = {name: to_python(rows.column(name)) for name in rows.schema.names if name != TOMBSTONE}
        kept = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        self.result.batches.append(rows)
        self.result.read += batch.num_rows
        self.result.skipped += sum(count.skipped for count in counts.values())
        self.result.rows += [
            {**row, DELETED: tuple(row[name] for name in (*_PLACE, "_row")) in deleted}
            for row in kept
            if tuple(row[name] for name in _PLACE) not in gone
        ]
        self.result.refused += records


def _deleted(staged: Iterable[pa.RecordBatch]) -> set[tuple[Any, ...]]:
    return {
        tuple(row.values())
        for rows in staged
        if DELETED in rows.schema.names
        for row in rows.filter(rows.column(DELETED)).select([*_PLACE, "_row"]).to_pylist()
    }
