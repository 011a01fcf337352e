"""Make outbox rows from parsed rows or from a transform's rows."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.batches import BatchFunction, call, require_columns
from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.reasons import any_true, without_values
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.formats.outbox import TopicEncoder
from epochline.arrow.stage.refused_rows import deleted_by_parse, left_out, not_given, refused_for, without_refused
from epochline.arrow.stage.rows import TOMBSTONE
from epochline.declare.columns import DELETED, STAGED_LINEAGE, STAGED_PLACE
from epochline.declare.specs import OutboxSpec, load_function
from epochline.errors import ValueDoesNotFitError
from epochline.protocol.staging import StagedTable


class TopicRows:
    """Makes the outbox rows of one topic. Tombstones and deleted rows become records without a value."""

    def __init__(self, outbox: OutboxSpec, staged: StagedTable) -> None:
        self._topic = outbox.topic
        # Staging adds the columns of STAGED_PLACE.
        self._schema = record_schema({name: kind for name, kind in staged.columns.items() if name not in STAGED_PLACE})
        self._kinds = {name: column_type(text) for name, text in outbox.topic.record.items()}
        self._encoder = TopicEncoder(outbox)
        self._select: BatchFunction | None = load_function(outbox.topic.select) if outbox.topic.select else None

    def build(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str], pa.Array | None]:
        """The outbox rows of parsed rows, and the reason for each row that cannot be sent."""
        what = f"{self._topic} takes its columns from the parse, which"
        chosen = rows
        refused: dict[int, str] = {}
        if self._select is not None:
            what = f"select {self._topic.select} of {self._topic}"
            columns = {name: rows.column(name) for name in rows.schema.names}
            refused = refused_for(what, columns, columns)
            chosen = call(what, self._select, without_refused(rows, refused))
        tombstones = rows.column(TOMBSTONE)
        by_parse = deleted_by_parse(rows)
        deleted = tombstones if by_parse is None else pc.or_(tombstones, by_parse)
        encoded, problems = self._encode(what, chosen, deleted if any_true(deleted) else None)
        for row, names in left_out(rows).items():
            ours = [name for name in names if self._select is not None or name in self._kinds]
            if deleted[row].as_py():
                ours = [name for name in ours if name in self._topic.key]
            if ours:
                problems.setdefault(row, f"{self._topic}: {not_given(ours)}")
        columns = {name: encoded.column(name) for name in encoded.schema.names}
        columns |= {name: rows.column(name) for name in STAGED_LINEAGE}
        return self._batch(columns), refused | problems, None

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The outbox rows of a transform's rows; raises `ValueDoesNotFitError` or `ColumnMismatchError`."""
        deleted = batch.column(DELETED) if DELETED in batch.schema.names else None
        encoded, problems = self._encode(f"the transform of {self._topic}", batch, deleted)
        if problems:
            reason = without_values(problems[min(problems)])
            raise ValueDoesNotFitError(
                f"{self._topic}: {reason}. After a transform a row has no record to quarantine, so the epoch fails"
            )
        columns = {name: encoded.column(name) for name in encoded.schema.names}
        columns |= {name: batch.column(name) for name in self._schema.names if name in STAGED_LINEAGE}
        return self._batch(columns)

    def _encode(
        self, what: str, rows: pa.RecordBatch, deleted: pa.Array | None
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        require_columns(what, rows, self._kinds)
        columns: dict[str, pa.Array] = {}
        problems: dict[int, str] = {}
        for name, kind in self._kinds.items():
            cast = cast_column(name, rows.column(name), kind)
            columns[name] = cast.array
            for row, reason in cast.problems.items():
                problems.setdefault(row, f"{self._topic}: {reason}")
        if deleted is not None:
            columns[DELETED] = pc.fill_null(deleted.cast(pa.bool_()), False)
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if isinstance(self._topic.value, str):
            refused = refused_for(f"value {self._topic.value} of {self._topic}", columns, columns)
            batch, problems = without_refused(batch, refused), refused | problems
        encoded, unfit = self._encoder.encode(batch)
        return encoded, unfit | problems

    def _batch(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [columns[name].cast(self._schema.field(name).type) for name in self._schema.names], schema=self._schema
        )


def needed_columns(outbox: OutboxSpec) -> list[str]:
    """The columns that a topic needs of a transform's DataFrame."""
    return [*outbox.topic.record, *(() if outbox.aggregated else STAGED_LINEAGE)]
