"""Prepares the DataFrames of a transform, or of windows, for staging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from epochline.arrow.cast.contract import refuse_generated
from epochline.arrow.stage.rows import TOMBSTONE, cast_rows
from epochline.arrow.stage.topic_rows import TopicRows, needed_columns
from epochline.config.registry import Registries
from epochline.declare.columns import DELETED, STAGED_LINEAGE
from epochline.declare.names import order_column
from epochline.declare.specs import OutboxSpec, PipelineSpec, SinkSpec
from epochline.errors import DeclarationError
from epochline.protocol.staging import StagedTable
from epochline.spark.functions import ShippedFunctions
from epochline.spark.one_pass import flushed, partial_sums
from epochline.spark.parse_frame import quoted

DIGEST = "_epochline_digest"
"""Column with a hash of each row of the transform. A part carries their sum, which reveals different tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFlowFactory:
    """Makes `SinkFlow` on executors."""

    pipeline: PipelineSpec
    sink: SinkSpec
    tables: tuple[StagedTable, ...]
    functions: ShippedFunctions
    registries: Registries = field(default=Registries(), repr=False)

    def make(self) -> SinkFlow:
        """Make a flow for one Spark partition."""
        self.functions.install()
        self.registries.install()
        return SinkFlow(self.pipeline, self.sink, self.tables)


class SinkFlow:
    """Turns a transform's rows of one Spark partition into rows of one sink."""

    def __init__(self, pipeline: PipelineSpec, sink: SinkSpec, tables: tuple[StagedTable, ...]) -> None:
        self._sink = sink
        (table,) = tables
        self._cast: Callable[[pa.RecordBatch], pa.RecordBatch] = (
            TopicRows(sink, table).cast if isinstance(sink, OutboxSpec) else partial(cast_rows, table, sink)
        )
        self._sums = partial_sums(pipeline, tables)
        self._rows = 0
        self._digest = 0

    def process(self, batch: pa.RecordBatch) -> Mapping[str, pa.RecordBatch]:
        """Cast one batch to the staging columns; a value that does not fit fails the attempt."""
        hashes = batch.column(batch.schema.get_field_index(DIGEST)).to_numpy().view(np.uint64)
        self._digest = (self._digest + int(hashes.sum(dtype=np.uint64))) % 2**64
        self._rows += batch.num_rows
        given = batch.drop_columns([DIGEST])
        rows = self._cast(given)
        summed = self._sums[self._sink.table].add(rows) if self._sums else rows
        return {} if summed is None else {self._sink.table: summed}

    def finish(self) -> Mapping[str, pa.RecordBatch]:
        """Return the remaining sums."""
        return flushed(self._sums)

    def message(self, sink: str) -> Mapping[str, Any]:
        """Return the number and digest of the transform's rows. Sums are no proof: a shuffle may reorder the rows."""
        return {"rows": self._rows, "digest": str(self._digest)}


def by_table(where: str, names: Mapping[str, str], made: Any, states: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Find the DataFrame of every sink and every state table in a transform's result.

    Args:
        where: pipeline and transform, for the message.
        names: staging name of each sink, by its name in the transform's result.
        made: the transform's result; a state table that it lacks stays unchanged.
        states: the state that the transform received, by state table.

    Raises:
        DeclarationError: a sink's DataFrame is missing, or a table is not declared.
    """
    tables = list(names)
    if isinstance(made, DataFrame):
        made = {tables[0]: made} if len(tables) == 1 and not states else made
    if not isinstance(made, Mapping):
        raise DeclarationError(
            f"{where} returned {type(made).__name__}; return a dict with a DataFrame for each of: {', '.join(tables)}"
        )
    missing = [table for table in tables if table not in made]
    strangers = [str(table) for table in made if table not in (*tables, *states)]
    wrong = [table for table in (*tables, *states) if table in made and not isinstance(made[table], DataFrame)]
    if missing or strangers or wrong:
        found = [f"no DataFrame for {table}" for table in missing]
        found += [f"{table}, which is not a declared sink" for table in strangers]
        found += [f"{type(made[table]).__name__} for {table}, where a DataFrame is needed" for table in wrong]
        raise DeclarationError(f"{where} returned {'; '.join(found)}. Return a DataFrame for every sink, even if empty")
    unchanged = {table: state.where(F.lit(False)) for table, state in states.items()}
    frames = {names.get(table, table): made[table] for table in (*tables, *states) if table in made}
    return {**unchanged, **frames}


def staged_frame(sink: SinkSpec, staged: StagedTable, frame: DataFrame) -> DataFrame:
    """Select the staging columns of a sink from a transform's DataFrame by name, and add each row's digest.

    If the frame lacks ``_order_…`` columns or ``_deleted``, the columns of ``order_by`` and ``_tombstone`` are taken
    instead; `cast_rows` converts them.

    Raises:
        DeclarationError: the frame lacks a column.
        ColumnMismatchError: it has a column that the table generates.
    """
    have = frame.columns
    refuse_generated(f"sink {sink}: the transform's DataFrame", have, staged.generated)
    if isinstance(sink, OutboxSpec):
        needed, may_delete = needed_columns(sink), True
    else:
        sources = {order_column(name): name for name in sink.order_by}
        needed = [name if name in have else sources.get(name, name) for name in staged.columns if name != DELETED]
        may_delete = DELETED in staged.columns
    missing = [name for name in needed if name not in have]
    if missing:
        hint = ""
        if set(missing) & set(STAGED_LINEAGE):
            hint = "; keep the lineage columns in the transform, or declare the sink aggregated=True"
        raise DeclarationError(
            f"sink {sink}: the transform's DataFrame has no {', '.join(missing)}; it has {', '.join(have)}{hint}"
        )
    optional = [name for name in (DELETED, TOMBSTONE) if may_delete and name in have]
    picked = [F.col(quoted(name)) for name in dict.fromkeys([*needed, *optional])]
    return frame.select(*picked, F.xxhash64(*picked).alias(DIGEST))
