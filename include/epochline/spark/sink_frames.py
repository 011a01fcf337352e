"""What a transform gave, table by table, on its way into staging. Its rows belong to no record any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

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
"""A hash of each row as the transform gave it; a part carries their sum, so that two tries can be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFlowFactory:
    """Makes the flow of a transform's rows into one sink."""

    pipeline: PipelineSpec
    sink: SinkSpec
    tables: tuple[StagedTable, ...]
    functions: ShippedFunctions
    registries: Registries = field(default=Registries(), repr=False)

    def make(self) -> SinkFlow:
        """A flow for one Spark partition."""
        self.functions.install()
        self.registries.install()
        return SinkFlow(self.pipeline, self.sink, self.tables)


class SinkFlow:
    """Rows of one Spark partition on their way into one sink."""

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
        """The sums that are left."""
        return flushed(self._sums)

    def message(self, sink: str) -> Mapping[str, Any]:
        """Rows and digest as the transform gave them: after a shuffle, sums may be flushed at other rows."""
        return {"rows": self._rows, "digest": str(self._digest)}


def by_table(where: str, names: Mapping[str, str], made: Any, states: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """The DataFrame of every sink and every state table, from what a transform returned.

    Args:
        where: names pipeline and transform, for the message.
        names: what a sink's rows are staged as, by the name under which the transform gives them.
        made: what it returned; a state table that is not in it keeps what it has.
        states: what it was given of each state table.

    Raises:
        DeclarationError: a sink got none, or a table is not declared.
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
        said = [f"no DataFrame for {table}" for table in missing]
        said += [f"{table}, which is no declared sink" for table in strangers]
        said += [f"{type(made[table]).__name__} for {table}, where a DataFrame is needed" for table in wrong]
        raise DeclarationError(f"{where} returned {'; '.join(said)}. Every sink needs its own, an empty one included")
    unchanged = {table: state.where(F.lit(False)) for table, state in states.items()}
    frames = {names.get(table, table): made[table] for table in (*tables, *states) if table in made}
    return {**unchanged, **frames}


def staged_frame(sink: SinkSpec, staged: StagedTable, frame: DataFrame) -> DataFrame:
    """The staging columns of a sink and each row's digest, taken from a transform's DataFrame by name.

    The columns of ``order_by`` stand for the ``_order_…`` columns, and ``_tombstone`` for ``_deleted``, where the
    frame has no such columns itself: `cast_rows` makes one of the other.

    Raises:
        DeclarationError: the frame lacks a column.
    """
    have = frame.columns
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
