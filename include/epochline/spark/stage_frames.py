"""Stages the rows that a transform or windows make from all of an epoch's records."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from epochline.arrow.cast.batches import refuse_generated
from epochline.arrow.stage.rows import TOMBSTONE
from epochline.arrow.stage.topic_rows import needed_columns
from epochline.config.registry import Registries
from epochline.declare.aggregation import Windowed
from epochline.declare.columns import DELETED, STAGED_LINEAGE
from epochline.declare.names import QUARANTINE, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.specs import OutboxSpec, SinkSpec, load_function
from epochline.declare.state import StateTable
from epochline.declare.windowed_query import QueryWindows
from epochline.errors import DeclarationError
from epochline.postgres.ledger.attempt_plan import AttemptPlan
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_external, staged_tables
from epochline.spark.functions import pickle_by_value, ship_functions
from epochline.spark.in_common import in_common
from epochline.spark.part_rows import (
    DIGEST,
    ParseTask,
    QuarantineRows,
    SinkRows,
    counts_in,
    frame_of,
    parsed_rows,
    quoted,
    refused_and_counted,
    sink_writer,
    spark_schema,
)
from epochline.spark.session import has_one_executor
from epochline.spark.source import RecordSource
from epochline.spark.staging import StagingWriter, stage
from epochline.spark.state import StateReader, WindowReader, read_state, read_windows
from epochline.spark.windowing import placed_in_windows, query_results, query_rows, require_same_query, windowed

Keep = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the end mark records: the epoch's watermark, and how many records were too late for any window.

    Both are None without windows, and the watermark before the first one.
    """

    watermark: datetime | None = None
    too_late: int | None = None


def stage_transformed(records: Mapping[str, RecordSource], plan: AttemptPlan, dsn: str, registries: Registries) -> Made:
    """Parse the records of each source once, make the rows of every table from them, and stage the rows.

    Raises what `frames_of_transform` raises, and any error of the attempt's writers and readers.
    """
    pipeline, ticket = plan.pipeline, plan.ticket
    named = [pipeline.transform, *(state.keys for state in pipeline.state)]
    for reference in filter(None, named):
        pickle_by_value(reference)
    specs, spec = pipeline.specs, pipeline.spec
    functions = {name: ship_functions(declared, registries) for name, declared in specs.items()}
    with kept() as keep:
        parsed = {
            name: keep(
                ParseTask(pipeline=declared, ticket=ticket, functions=functions[name], dsn=dsn).frame(records[name])
            )
            for name, declared in specs.items()
        }
        counted = reduce(DataFrame.union, map(refused_and_counted, parsed.values()))
        quarantine = StagingWriter(ticket=ticket, dsn=dsn, tables=(ticket.table(QUARANTINE),), rows=QuarantineRows)
        writes = [(counted, quarantine)]
        rows = {name: parsed_rows(frame, specs[name]) for name, frame in parsed.items()}
        windows, made = pipeline.windowing, Made()
        if windows is not None and plan.times is not None:
            if isinstance(windows, QueryWindows):
                require_same_query(rows[""], windows)  # before counting stages anything
            newest = {place: counts.newest for place, counts in counts_in(parsed[""]).items()}
            before, after = plan.times.watermark, plan.times.after(windows.time, newest)
            reader = WindowReader.of(ticket, windows.open_windows(pipeline.sinks), dsn, lateness=windows.lateness)
            frames, too_late = by_windows(pipeline, windows, rows[""], reader, before, after, keep)
            made = Made(watermark=after, too_late=too_late.count())
        else:
            frames = by_transform(pipeline, rows, lambda state: StateReader.of(ticket, state, dsn), keep)
        ships = next(iter(functions.values()))
        for sink in spec.sinks:
            staged = staged_frame(sink, ticket.table(sink.table), frames[sink.table])
            writes.append((staged, sink_writer(spec, sink, ticket, dsn, ships)))
        stage(writes)
    return made


def by_transform(
    pipeline: Pipeline, rows: Mapping[str, DataFrame], reader: Callable[[StateTable], StateReader], keep: Keep
) -> Mapping[str, DataFrame]:
    """The rows of each destination by the pipeline's transform, from the parsed rows of each input."""
    source_rows = rows if len(rows) > 1 else rows[""]
    states = {state.table: keep(read_state(source_rows, reader(state), state.keys)) for state in pipeline.state}
    frames = frames_of_transform(pipeline, source_rows, states)
    _compute_once(frames, [*rows.values(), *states.values()], keep)
    return frames


def frames_of_transform(
    pipeline: Pipeline, given: DataFrame | Mapping[str, DataFrame], states: Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    """Call the pipeline's transform; its DataFrame for each sink, by staging name, and for each state table.

    Of several sources, ``given`` has the parsed rows of each by its name. A state table that the result lacks stays
    unchanged. Raises `DeclarationError` if a sink's DataFrame is missing, or a table is not declared.
    """
    transform: Callable[..., Any] = load_function(pipeline.transform or "")
    frames = transform(given, states) if states else transform(given)
    names = _declared_rows(pipeline)
    where, tables = f"{pipeline.name}: {pipeline.transform}", list(names)
    if isinstance(frames, DataFrame) and len(tables) == 1 and not states:
        frames = {tables[0]: frames}
    if not isinstance(frames, Mapping):
        raise DeclarationError(
            f"{where} returned {type(frames).__name__}; return a dict with a DataFrame for each of: {', '.join(tables)}"
        )
    wrong = [f"no DataFrame for {table}" for table in tables if table not in frames]
    for table, frame in frames.items():
        if table not in (*tables, *states):
            wrong.append(f"{table}, which is not a declared sink")
        elif not isinstance(frame, DataFrame):
            wrong.append(f"{type(frame).__name__} for {table}, where a DataFrame is needed")
    if wrong:
        raise DeclarationError(f"{where} returned {'; '.join(wrong)}. Return a DataFrame for every sink, even if empty")
    unchanged = {table: state.where(F.lit(False)) for table, state in states.items()}
    return {**unchanged, **{names.get(table, table): frames[table] for table in (*tables, *states) if table in frames}}


def by_windows(
    pipeline: Pipeline, windows: Windowed, rows: DataFrame, reader: WindowReader, before: datetime | None,
    after: datetime | None, keep: Keep,
) -> tuple[Mapping[str, DataFrame], DataFrame]:  # fmt: skip
    """The rows of each destination by windows, and the records that are too late.

    ``before`` and ``after`` are the watermarks of the previous epoch and of this one.
    """
    if isinstance(windows, QueryWindows):
        rows = query_rows(rows, windows)
    open_windows = keep(read_windows(placed_in_windows(rows, windows), reader, before, after))
    out = windowed(rows, open_windows, windows, before=_moment(before), after=_moment(after))
    results = out.results
    if isinstance(windows, QueryWindows):
        results = query_results(results, windows, before=_moment(before))
    too_late = keep(out.too_late)
    rows_of = _declared_rows(pipeline)
    frames = {rows_of[windows.into]: results, windows.open_windows(pipeline.sinks).table: out.state}
    # A sum of floats depends on the order of its terms.
    _compute_once(frames, [rows, open_windows], keep)
    if windows.too_late is not None:
        frames[rows_of[windows.too_late]] = too_late
    return frames, too_late


def _compute_once(frames: Mapping[str, DataFrame], inputs: Sequence[DataFrame], keep: Keep) -> None:
    """Let the one job that writes several frames compute once what they have in common.

    Two executors of that job could compute the same block at the same time, each in its own way. So the blocks are
    computed before it, unless there is one executor, which locks a block that it computes.
    """
    spark = inputs[0].sparkSession
    common = [keep(frame) for frame in in_common(spark, frames.values(), inputs)]
    if not has_one_executor(spark):
        for frame in common:
            frame.count()


def _declared_rows(pipeline: Pipeline) -> dict[str, str]:
    """Staging name of each sink, by its name in a transform's result."""
    return {sink.name: sink.staged_as for sink in pipeline.outputs}


def _moment(watermark: datetime | None) -> Column:
    return F.lit(watermark).cast("timestamp")


@contextmanager
def kept() -> Iterator[Keep]:
    """Persist frames that are read more than once until the end of the block."""
    frames: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        frames.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frames[-1]

    try:
        yield keep
    finally:
        for frame in frames:
            frame.unpersist()


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


def transformed(
    spark: SparkSession, pipeline: Pipeline, parsed: Sequence[pa.RecordBatch], most: int
) -> Mapping[str, list[dict[str, Any]]]:
    """Run the pipeline's transform over batches of parsed rows, with empty state tables.

    Returns by sink up to ``most`` rows with the columns that would be staged. A sink whose columns the target alone
    knows is left out. Raises what `frames_of_transform` and `staged_frame` raise, and an `EpochlineError` if a value
    does not fit its column.
    """
    spec = pipeline.spec
    pickle_by_value(pipeline.transform or "")
    source_rows = parsed_rows(frame_of(spark, spec, parsed), spec)
    states = {
        state.table: spark.createDataFrame([], from_arrow_schema(spark_schema(state.columns or {})))
        for state in pipeline.state
    }
    frames = frames_of_transform(pipeline, source_rows, states)
    columns = {sink.table: sink.columns or {} for sink in pipeline.tables}
    staged = {table.sink: table for table in (*staged_tables(pipeline, columns, 0, 0), *staged_external(pipeline))}
    rows: dict[str, list[dict[str, Any]]] = {}
    for sink in spec.sinks:
        if columns.get(sink.table, True):
            target = staged[sink.table]
            part_rows = SinkRows(spec, sink, target)
            rows_made = staged_frame(sink, target, frames[sink.table]).limit(most).toArrow()
            batches = [part_rows.process(batch) for batch in rows_made.to_batches()] + [part_rows.finish()]
            rows[str(sink)] = [row for by_sink in batches for batch in by_sink.values() for row in batch.to_pylist()]
    return rows
