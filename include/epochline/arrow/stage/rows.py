"""Make the rows of one sink's staging table from parsed rows or from a transform's rows."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import BatchFunction, call, refuse_generated, require_columns
from epochline.arrow.cast.casting import cast_column, null_rows, shown
from epochline.arrow.cast.reasons import any_true, without_values
from epochline.arrow.cast.types import column_types, record_schema
from epochline.arrow.stage.refused_rows import (
    deleted_by_parse,
    left_out,
    not_given,
    refused_for,
    staged_names,
    without_refused,
)
from epochline.declare.columns import DELETED, STAGED_LINEAGE, UNAVAILABLE
from epochline.declare.names import order_column
from epochline.declare.specs import TableSpec, load_function
from epochline.errors import ValueDoesNotFitError
from epochline.protocol.staging import StagedTable

TOMBSTONE = "_tombstone"
"""Boolean column of parsed rows: whether the record had no value."""


class RowBuilder:
    """Makes the staging rows of one sink from rows that are cast to ``record``."""

    def __init__(
        self, sink: TableSpec, staged: StagedTable, record: Mapping[str, str], *, plain_arrow: bool = False
    ) -> None:
        self._sink = sink
        self._record = record
        self._schema = record_schema(staged.columns)
        self._kinds = column_types(staged.columns, staged.labels)
        self._orders = {order_column(name): name for name in sink.order_by}
        own = {*STAGED_LINEAGE, DELETED, UNAVAILABLE, *self._orders}
        self._targets = [name for name in staged.columns if name not in own]
        self._not_null = [name for name in self._targets if name in staged.not_null and name not in sink.key]
        self._generated = staged.generated
        self._select: BatchFunction | None = load_function(sink.select) if sink.select else None
        self._plain_arrow = plain_arrow

    def build(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str], pa.Array | None]:
        """The staging rows, the reason for each row that cannot be staged, and the staged rows' indices (None: all).

        A true ``_deleted`` deletes the row's key. Raises `BatchContractError` if ``_deleted`` or a select is unfit,
        `ColumnMismatchError` if a column is missing or cannot be cast.
        """
        problems: dict[int, str] = {}
        chosen = rows
        what = f"{self._sink} takes its columns from the parse, which"
        if self._select is not None:
            what = f"select {self._sink.select} of {self._sink}"
            problems = refused_for(what, dict(zip(rows.schema.names, rows.columns, strict=True)), self._record)
            chosen = call(what, self._select, without_refused(rows, problems))
            refuse_generated(what, chosen.schema.names, self._generated)
        require_columns(what, chosen, self._targets)
        tombstones = rows.column(TOMBSTONE)
        on_tombstone = self._sink.on_tombstone if any_true(tombstones) else None
        deleted = self._deleted(rows, on_tombstone)
        columns: dict[str, pa.Array] = {}
        for name in self._targets:
            column = chosen.column(name)
            if deleted is not None and name not in self._sink.key:
                column = pc.if_else(deleted, pa.scalar(None, column.type), column)
            columns[name] = self._cast(name, column, problems)
        if self._plain_arrow:
            problems = refused_for(str(self._sink), columns, self._targets) | problems
        self._own_columns(rows, columns, deleted)
        kept = self._kept(rows, problems, deleted)
        if UNAVAILABLE in self._kinds:
            columns[UNAVAILABLE] = staged_names(kept, rows.num_rows)
        if on_tombstone == "quarantine":
            for row in pc.indices_nonzero(tombstones).to_pylist():
                problems[row] = f"{self._sink}: the record has no value, and tombstones are quarantined"
        ignored = tombstones if on_tombstone == "ignore" else None
        self._refuse_nulls(columns, problems, deleted, kept)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        if ignored is None:
            return batch, problems, None
        kept = pc.indices_nonzero(pc.invert(ignored))
        rows_kept = set(kept.to_pylist())
        return batch.take(kept), {row: why for row, why in problems.items() if row in rows_kept}, kept

    def _cast(self, name: str, column: pa.Array, problems: dict[int, str]) -> pa.Array:
        kind = self._kinds[name]
        if self._select is None and self._record.get(name) == str(kind):
            array = column  # already cast and checked as a column of the record
        else:
            cast = cast_column(name, column, kind)
            for row, reason in cast.problems.items():
                problems.setdefault(row, f"{self._sink}: {reason}")
            array = cast.array
        return _fill_measure(self._sink, name, array)

    def _deleted(self, rows: pa.RecordBatch, on_tombstone: str | None) -> pa.Array | None:
        """Which rows delete their key, or None if no row does or the sink has no deletions."""
        if self._sink.mode != "upsert":
            return None
        deleted = rows.column(TOMBSTONE) if on_tombstone == "delete" else None
        by_parse = deleted_by_parse(rows)
        if by_parse is not None:
            deleted = by_parse if deleted is None else pc.or_(deleted, by_parse)
        return deleted if deleted is not None and any_true(deleted) else None

    def _kept(self, rows: pa.RecordBatch, problems: dict[int, str], deleted: pa.Array | None) -> dict[int, list[str]]:
        """Per row the columns of the target that keep their value, because the record does not give it."""
        needed = (*self._sink.key, *self._sink.order_by)
        kept: dict[int, list[str]] = {}
        for row, names in left_out(rows).items():
            is_deletion = deleted is not None and deleted[row].as_py()
            # A column of a select may be made of any column of the record.
            ours = [name for name in names if self._select is not None or name in (*self._targets, *needed)]
            missing = [name for name in ours if name in needed]
            if missing or (ours and not is_deletion and not (self._sink.keep_unavailable and self._select is None)):
                advice = "" if missing or self._sink.mode != "upsert" else "; declare keep_unavailable=True"
                problems.setdefault(row, f"{self._sink}: {not_given(missing or ours)}{advice}")
            elif not is_deletion:
                kept[row] = ours
        return kept

    def _own_columns(self, rows: pa.RecordBatch, columns: dict[str, pa.Array], deleted: pa.Array | None) -> None:
        for name in self._kinds:
            if name in STAGED_LINEAGE:
                columns[name] = rows.column(name)
            elif name == DELETED:
                columns[name] = pa.repeat(False, rows.num_rows) if deleted is None else deleted
            elif name in self._orders:
                columns[name] = rows.column(self._orders[name])

    def _refuse_nulls(
        self,
        columns: dict[str, pa.Array],
        problems: dict[int, str],
        deleted: pa.Array | None,
        kept: dict[int, list[str]],
    ) -> None:
        for name in self._sink.key:
            for row in null_rows(columns[name]):
                problems.setdefault(row, f"{self._sink}: NULL in the key column {name}")
        for row, size in too_long([columns[name] for name in self._sink.key]).items():
            problems.setdefault(row, f"{self._sink}: {_long_key(self._sink, size)}")
        for staged, name in self._orders.items():
            if staged in columns:
                # No value is newer than NULL, so such a row or deletion would be lost silently (INV-9).
                for row in null_rows(columns[staged]):
                    problems.setdefault(row, f"{self._sink}: NULL in {name}, by which the newest row is chosen")
        for name in self._not_null:
            for row in null_rows(columns[name]):
                if (deleted is None or not deleted[row].as_py()) and name not in kept.get(row, ()):
                    problems.setdefault(row, f"{self._sink}: NULL in {name}, which the table declares NOT NULL")


def _long_key(sink: TableSpec, size: int) -> str:
    return f"the key ({', '.join(sink.key)}) has {size} bytes, more than an index of PostgreSQL takes ({KEY_BYTES})"


def _fill_measure(sink: TableSpec, name: str, column: pa.Array) -> pa.Array:
    """Replace NULL by 0 in a measure, because one NULL would make the whole sum NULL."""
    if name in sink.measures and column.null_count:
        # From text: Arrow casts no integer to a decimal of fewer than 21 digits.
        return pc.fill_null(column, pa.scalar("0").cast(column.type))
    return column


def cast_rows(staged: StagedTable, sink: TableSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cast a batch of a transform's DataFrame to the staging columns, which are matched by name.

    ``_deleted`` comes from a column of that name, else from ``_tombstone`` as the sink declares. Raises
    `ColumnMismatchError` if a column is missing or cannot be cast, `ValueDoesNotFitError` if a value does not fit.
    """
    if TOMBSTONE in batch.schema.names and sink.on_tombstone == "ignore":
        batch = batch.filter(pc.invert(pc.fill_null(batch.column(TOMBSTONE), False)))
    orders = {order_column(name): name for name in sink.order_by}
    kinds = column_types(staged.columns, staged.labels)
    deleted = _deleted(sink, batch) if DELETED in staged.columns else None
    columns: list[pa.Array] = []
    for name in staged.columns:
        if name == DELETED and deleted is not None:
            columns.append(deleted)
            continue
        source = orders.get(name, name) if name not in batch.schema.names else name
        require_columns(f"the transform of {sink}", batch, [source])
        column = batch.column(source)
        own = name in STAGED_LINEAGE or name in orders
        if deleted is not None and not own and name not in sink.key and any_true(deleted):
            column = pc.if_else(deleted, pa.scalar(None, column.type), column)
        cast = cast_column(source, column, kinds[name])
        if cast.problems:
            row, reason = min(cast.problems.items())
            raise ValueDoesNotFitError(
                f"{sink}: {without_values(reason)}. After a transform a row has no record to quarantine, so the epoch"
                f" fails{_position(batch, row)}"
            )
        if (name in sink.key or name in orders) and cast.array.null_count:
            role = "the key" if name in sink.key else "order_by"
            raise ValueDoesNotFitError(f"{sink}: NULL in {source}, a column of {role}; the epoch fails")
        columns.append(_fill_measure(sink, name, cast.array))
    rows = pa.RecordBatch.from_arrays(columns, schema=record_schema(staged.columns))
    for row, size in too_long([rows.column(name) for name in sink.key]).items():
        raise ValueDoesNotFitError(f"{sink}: {_long_key(sink, size)}; the epoch fails{_position(batch, row)}")
    return rows


def _deleted(sink: TableSpec, batch: pa.RecordBatch) -> pa.Array:
    for name in (DELETED, TOMBSTONE):
        if name in batch.schema.names and (name == DELETED or sink.on_tombstone == "delete"):
            return pc.fill_null(batch.column(name).cast(pa.bool_()), False)
    return pa.array([False] * batch.num_rows, pa.bool_())


def _position(batch: pa.RecordBatch, row: int) -> str:
    names = [name for name in ("_topic", "_partition", "_offset") if name in batch.schema.names]
    return f" ({', '.join(f'{name} {shown(batch.column(name)[row])}' for name in names)})" if names else ""


KEY_BYTES = 2692
"""Maximum bytes of a key of one text column: a third of a page, without headers."""

_HEADER = 8
_FIXED = 16
"""Maximum bytes of a column of fixed length, such as a uuid."""


def too_long(columns: Sequence[pa.Array]) -> dict[int, int]:
    """The rows whose key is too long for an index, with the number of its bytes; NULL counts 0 bytes."""
    variable = [column for column in columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)]
    if not variable:
        return {}
    # A key of several columns pads each value.
    limit = KEY_BYTES - (len(variable) - 1) * _HEADER - (len(columns) - len(variable)) * _FIXED
    total = pc.fill_null(pc.binary_length(variable[0]), 0).cast(pa.int64())
    for column in variable[1:]:
        total = pc.add(total, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return {row: total[row].as_py() for row in pc.indices_nonzero(pc.greater(total, limit)).to_pylist()}
