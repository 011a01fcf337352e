"""Process source batches: parse and cast records, make each sink's rows, quarantine bad records, count."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import ERROR, SKIP, marks, quarantine_batch, require_columns, source_batch
from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.reasons import any_true, without_values
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.formats.parsers import build_parser
from epochline.arrow.stage.counts import (
    CountsByPartition,
    EventTimes,
    count_records,
    later,
    newest_times,
    skipped_times,
)
from epochline.arrow.stage.refused_rows import (
    deleted_by_parse,
    left_out,
    not_given,
    outside_windows,
    refused_for,
    takes_every_value,
)
from epochline.arrow.stage.rows import TOMBSTONE, RowBuilder
from epochline.arrow.stage.topic_rows import TopicRows
from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.names import QUARANTINE
from epochline.declare.specs import OutboxSpec, PipelineSpec, TableSpec
from epochline.errors import BadRecordError, BatchContractError
from epochline.protocol.refused import NONE_REFUSED, Refused
from epochline.protocol.staging import StagedTable

_DELETED = (
    "the parse marked the record with _deleted, which does not reach the transform. Mark it in a column of the record,"
    " and let the transform set _deleted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The result of one source batch: rows per sink, quarantined records, and counts per Kafka partition."""

    rows: Mapping[str, pa.RecordBatch]
    quarantine: pa.RecordBatch
    counts: CountsByPartition


@dataclass(slots=True)
class _Parsed:
    """Parsed rows of the records that are good so far, and which records are bad or skipped."""

    rows: pa.RecordBatch
    record: npt.NDArray[np.int64]
    """Per row, the index of its record in the source batch."""
    reasons: dict[int, str]
    skip: npt.NDArray[np.bool_]
    carried: EventTimes


class BatchRows:
    """Turns source batches of one pipeline into rows of its staging tables; keeps no state between batches.

    A record is passed, skipped or quarantined as a whole: if one sink refuses it, no sink gets it. A record of
    ``refused`` was refused by a target when an earlier attempt was sealed, and counts as bad.
    """

    def __init__(self, pipeline: PipelineSpec, tables: Sequence[StagedTable], refused: Refused = NONE_REFUSED) -> None:
        self._pipeline = pipeline
        self._refused = refused
        self._parse = build_parser(pipeline)
        self._record = {name: column_type(text) for name, text in pipeline.parsed_columns.items()}
        # A ready-made parser returns its columns cast, and a second cast would give the same. Elements are not cast.
        is_cast = not isinstance(pipeline.parse, str) and pipeline.explode is None
        self._to_cast = {} if is_cast else self._record
        self._sinks: dict[str, RowBuilder | TopicRows] = {}
        if not pipeline.is_transformed:
            self._sinks = {table.sink: _rows_of(pipeline, table) for table in tables if table.sink != QUARANTINE}
        self._quarantines_tombstones = any(
            isinstance(sink, TableSpec) and sink.on_tombstone == "quarantine" for sink in pipeline.sinks
        )

    def process(self, batch: pa.RecordBatch) -> Processed:
        """Rows of every sink and of the quarantine, and the counts; may raise `BadRecordError`."""
        source = source_batch(batch)
        parsed = self._parse_records(source)
        built: dict[str, tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = {}
        bad_before = len(parsed.reasons)
        for name, sink in self._sinks.items():
            # problems: reason by row of `parsed.rows`. kept: the row in `parsed.rows` of each built row; None if all.
            rows, problems, kept = sink.build(parsed.rows)
            for row, reason in problems.items():
                parsed.reasons.setdefault(int(parsed.record[row]), reason)
            built[name] = (rows, parsed.record if kept is None else parsed.record[np.asarray(kept)])
        self._fail_if_declared(source, parsed.reasons)
        # `parsed.rows` lacks the records that were bad before: only what a sink found calls for another filter.
        found_more = len(parsed.reasons) > bad_before
        return Processed(
            rows={
                name: _without(rows, record, parsed.reasons) if found_more else rows
                for name, (rows, record) in built.items()
            },
            quarantine=quarantine_batch(source, parsed.reasons),
            counts=count_records(source, parsed.reasons, parsed.skip),
        )

    def parse_only(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch, CountsByPartition]:
        """For a ``transform``: rows of `parsed_schema`, the quarantine's rows and the counts. Raises as `process`."""
        source = source_batch(batch)
        parsed = self._parse_records(source)
        rows = parsed.rows
        if self._quarantines_tombstones and any_true(rows.column(TOMBSTONE)):
            for row in pc.indices_nonzero(rows.column(TOMBSTONE)).to_pylist():
                record = int(parsed.record[row])
                parsed.reasons[record] = "the record has no value, and tombstones are quarantined"
            rows = _without(rows, parsed.record, parsed.reasons)
        self._fail_if_declared(source, parsed.reasons)
        counts = count_records(source, parsed.reasons, parsed.skip)
        if self._pipeline.event_time is not None:
            times = later(newest_times(rows, self._pipeline.event_time), parsed.carried)
            for place, newest in times.items():
                counts[place] = replace(counts[place], newest=newest)
        return rows.select(self.parsed_schema.names), quarantine_batch(source, parsed.reasons), counts

    @property
    def transformed(self) -> bool:
        """Whether the pipeline has a ``transform``. Use `parse_only` then."""
        return self._pipeline.is_transformed

    @property
    def parsed_schema(self) -> pa.Schema:
        """The schema of the rows of `parse_only`: the record, its lineage and ``_tombstone``."""
        columns = dict(self._pipeline.parsed_columns) | STAGED_LINEAGE | {TOMBSTONE: "boolean"}
        return record_schema(columns)

    def _parse_records(self, source: pa.RecordBatch) -> _Parsed:
        what = f"parse of {self._pipeline.name}"
        batch = self._parse(source)
        reasons, skipped = marks(what, batch)
        batch = batch.select([name for name in batch.schema.names if name not in (ERROR, SKIP)])
        record = np.arange(source.num_rows)
        skip = np.zeros(source.num_rows, bool)
        skip[skipped] = True
        carried: EventTimes = {}
        if skipped and self._pipeline.event_time is not None:
            carried, problems = skipped_times(
                source, batch, skipped, self._pipeline.event_time, self._pipeline.parsed_columns
            )
            reasons |= problems
            skip[list(problems)] = False
        # A record that the parse skips stays skipped, although a target refused its row earlier.
        for row, reason in self._refused_rows(source):
            if not skip[row]:
                reasons.setdefault(row, reason)
        if reasons or skipped:
            keep = ~skip
            keep[list(reasons)] = False
            record = record[keep]
            batch = batch.filter(pa.array(keep))
        tombstones = source.column("value").is_null()
        if self._pipeline.explode is not None:
            without_value = tombstones.take(pa.array(record))
            batch, parents, numbers = explode(batch, self._pipeline.explode, without_value)
            record = record[np.asarray(parents)]
        else:
            numbers = pa.array(np.zeros(len(record), np.int32))

        def refuse(problems: Mapping[int, str]) -> None:
            for row, reason in problems.items():
                reasons.setdefault(int(record[row]), reason)

        require_columns(what, batch, self._record)
        columns = {name: batch.column(name) for name in batch.schema.names}
        for name, kind in self._to_cast.items():
            cast = cast_column(name, columns[name], kind)
            columns[name] = cast.array
            refuse(cast.problems)
        if self._pipeline.is_transformed:
            # Spark gets a time of day as a text.
            spark = [name for name in self._record if not pa.types.is_time(columns[name].type)]
            refuse(refused_for("a transform or windows", columns, spark))
        if self._pipeline.event_time is not None:
            without_value = tombstones.take(pa.array(record))
            refuse(outside_windows(self._pipeline, batch, columns, without_value))
        if self._pipeline.is_transformed:
            kept_by_none = "which no transform or window can keep"
            refuse({row: f"{not_given(names)}, {kept_by_none}" for row, names in left_out(batch).items()})
            deleted = deleted_by_parse(batch) if self._pipeline.event_time is None else None
            if deleted is not None:
                refuse(dict.fromkeys(pc.indices_nonzero(deleted).to_pylist(), _DELETED))
        # Whether each record gave exactly one row, in order: then columns need no copy.
        one_to_one = len(record) == source.num_rows and self._pipeline.explode is None
        for name in ("topic", "partition", "offset"):
            column = source.column(name)
            columns[f"_{name}"] = column if one_to_one else column.take(pa.array(record))
        columns["_row"] = numbers
        columns[TOMBSTONE] = tombstones if one_to_one else tombstones.take(pa.array(record))
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        parsed = _Parsed(rows=rows, record=record, reasons=reasons, skip=skip, carried=carried)
        if reasons:
            keep = ~np.isin(record, list(reasons))
            parsed.rows, parsed.record = rows.filter(pa.array(keep)), record[keep]
        return parsed

    def _refused_rows(self, source: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        for (topic, partition), offsets in self._refused.items():
            here = pc.and_(pc.equal(source.column("topic"), topic), pc.equal(source.column("partition"), partition))
            refused = pc.and_(here, pc.is_in(source.column("offset"), pa.array(list(offsets), pa.int64())))
            for row in pc.indices_nonzero(refused).to_pylist():
                yield row, offsets[source.column("offset")[row].as_py()]

    def _fail_if_declared(self, source: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        if not reasons or self._pipeline.bad_records == "quarantine":
            return
        row = min(reasons)
        topic, partition, offset = (source.column(name)[row] for name in ("topic", "partition", "offset"))
        raise BadRecordError(
            f"{topic}-{partition} offset {offset}: {without_values(reasons[row])}. The policy for bad records is"
            f" 'fail': nothing of this attempt is kept ({len(reasons)} bad in this batch). Correct the parse, or"
            " declare bad_records='quarantine'"
        )


def _rows_of(pipeline: PipelineSpec, table: StagedTable) -> RowBuilder | TopicRows:
    sink = pipeline.sink(table.sink)
    if isinstance(sink, OutboxSpec):
        return TopicRows(sink, table)
    external = {sink.name: sink for sink in pipeline.external}
    plain_arrow = table.sink in external and not takes_every_value(external[table.sink])
    return RowBuilder(sink, table, pipeline.parsed_columns, plain_arrow=plain_arrow)


def _without(rows: pa.RecordBatch, record: npt.NDArray[np.int64], reasons: Mapping[int, str]) -> pa.RecordBatch:
    return rows.filter(pa.array(~np.isin(record, list(reasons))))


def explode(batch: pa.RecordBatch, name: str, keep_empty: pa.Array) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
    """Make one row per element of a list column; the fields of a list of structs become columns.

    A row with an empty list or NULL gives no row, unless ``keep_empty`` is true for it, as for tombstones. Returns the
    rows, the index of each one's row in ``batch``, and its number within the record. Raises `BatchContractError` if
    there is no such list.
    """
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise BatchContractError(f"explode: parse returned no column {name!r}; it returned {batch.schema.names}")
    lists = batch.column(at)
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise BatchContractError(f"explode: column {name!r} has type {lists.type}; it must be a list")
    element = lists.type.value_type
    counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    kept = (counts == 0) & np.asarray(keep_empty)
    parents = np.repeat(np.arange(len(lists)), counts + kept)
    first_row = np.cumsum(counts + kept) - (counts + kept)
    numbers = (np.arange(len(parents)) - first_row[parents]).astype(np.int32)
    # The flat array ends with an extra NULL, for kept rows without elements.
    flat = pa.concat_arrays([pc.list_flatten(lists), pa.nulls(1, element)])
    position = np.where(kept[parents], len(flat) - 1, np.cumsum(~kept[parents]) - 1)
    elements = flat.take(pa.array(position, pa.int64()))
    indices = pa.array(parents, pa.int64())
    columns = {other: batch.column(other).take(indices) for other in batch.schema.names if other != name}
    if pa.types.is_struct(element):
        columns |= dict(zip((field.name for field in element), elements.flatten(), strict=True))
    else:
        columns[name] = elements
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return rows, indices, pa.array(numbers, pa.int32())
