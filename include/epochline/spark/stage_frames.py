"""Stages the rows that a transform or windows make from all of an epoch's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from epochline.config.registry import Registries
from epochline.declare.aggregation import Windowed
from epochline.declare.event_time import TimeStanding
from epochline.declare.functions import load_function
from epochline.declare.names import QUARANTINE
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.declare.windowed_query import QueryWindows
from epochline.postgres.ledger.parts import counts_of
from epochline.protocol.balances import add_up
from epochline.spark.attempt_plan import AttemptPlan
from epochline.spark.functions import pickle_by_value, ship_functions
from epochline.spark.in_common import in_common
from epochline.spark.open_windows import WindowReader, read_windows
from epochline.spark.parse_frame import (
    COUNTS,
    IS_COUNTS,
    KIND,
    ParseTask,
    QuarantineFactory,
    parse,
    parsed_rows,
    refused_and_counted,
)
from epochline.spark.server import has_one_executor
from epochline.spark.sink_frames import SinkFlowFactory, by_table, staged_frame
from epochline.spark.source import RecordSource
from epochline.spark.staging import WriteOrder, stage
from epochline.spark.state import StateReader, read_state
from epochline.spark.windowed_query import query_results, query_rows, require_same_query
from epochline.spark.windowing import placed_in_windows, windowed

_Keep = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Results of a job that its end mark records.

    Args:
        watermark: the epoch's watermark; None without windows, or before the first watermark.
        too_late: number of records that were too late for any window; None without windows.
    """

    watermark: datetime | None = None
    too_late: int | None = None


def stage_transformed(records: Mapping[str, RecordSource], plan: AttemptPlan, dsn: str, registries: Registries) -> Made:
    """Parse the records of each source once, make the rows of every table from them, and stage the rows.

    Raises:
        DeclarationError: the transform did not return the declared DataFrames.
        EpochlineError: any error of the attempt's writers and readers.
    """
    pipeline, ticket = plan.pipeline, plan.ticket
    named = [pipeline.transform, *(state.keys for state in pipeline.state)]
    for reference in filter(None, named):
        load_function(reference)
        pickle_by_value(reference.partition(":")[0])
    specs, spec = pipeline.specs, pipeline.spec
    functions = {name: ship_functions(one) for name, one in specs.items()}
    with _kept() as keep:
        parsed = {
            name: keep(
                parse(
                    records[name],
                    ParseTask(
                        pipeline=one, ticket=ticket, functions=functions[name], dsn=dsn, registries=registries
                    ),
                )
            )
            for name, one in specs.items()
        }  # fmt: skip
        first = QuarantineFactory(tables=(ticket.table(QUARANTINE),))
        counted = reduce(lambda one, other: one.union(other), (refused_and_counted(one) for one in parsed.values()))
        writes = [(counted, WriteOrder(ticket=ticket, flow=first, dsn=dsn))]
        windows = pipeline.windowing
        if windows is not None and plan.times is not None:
            frames, made = _by_windows(parsed[""], plan, windows, plan.times, dsn, keep)
        else:
            frames, made = _by_transform(parsed, plan, dsn, keep), Made()
        ships = next(iter(functions.values()))
        for sink in spec.sinks:
            staged = ticket.table(sink.table)
            flow = SinkFlowFactory(pipeline=spec, sink=sink, tables=(staged,), functions=ships, registries=registries)
            rows = staged_frame(sink, staged, frames[sink.table])
            writes.append((rows, WriteOrder(ticket=ticket, flow=flow, dsn=dsn, external=spec.external)))
        stage(writes)
    return made


def _by_transform(parsed: Mapping[str, DataFrame], plan: AttemptPlan, dsn: str, keep: _Keep) -> Mapping[str, DataFrame]:
    pipeline = plan.pipeline
    rows = {name: parsed_rows(frame, pipeline.specs[name]) for name, frame in parsed.items()}
    given = rows if len(rows) > 1 else rows[""]
    states = {
        state.table: keep(read_state(given, _reader_of(state, plan, dsn), state.keys)) for state in pipeline.state
    }
    frames = frames_of_transform(pipeline, given, states)
    _compute_once(frames, [*rows.values(), *states.values()], keep)
    return frames


def frames_of_transform(
    pipeline: Pipeline, given: DataFrame | Mapping[str, DataFrame], states: Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    """Call the pipeline's transform; its DataFrame for each sink, by staging name, and for each state table.

    Args:
        pipeline: the declaration, which has a transform.
        given: the parsed rows; of several sources, those of each by its name.
        states: the state that the transform receives, by state table.

    Raises:
        DeclarationError: the transform did not return the declared DataFrames.
    """
    transform: Callable[..., object] = load_function(pipeline.transform or "")
    made = transform(given, states) if states else transform(given)
    return by_table(f"{pipeline.name}: {pipeline.transform}", _declared_rows(pipeline), made, states)


def _by_windows(
    frame: DataFrame, plan: AttemptPlan, windows: Windowed, times: TimeStanding, dsn: str, keep: _Keep
) -> tuple[Mapping[str, DataFrame], Made]:
    rows = parsed_rows(frame, plan.pipeline.spec)
    if isinstance(windows, QueryWindows):
        require_same_query(rows, windows)
        rows = query_rows(rows, windows)
    counted = frame.where(F.col(KIND) == IS_COUNTS).select(COUNTS).collect()
    seen = add_up(counts_of(json.loads(one[COUNTS])) for one in counted)
    before = times.watermark
    after = times.after(windows.time, {place: counts.newest for place, counts in seen.items()})
    state = windows.open_windows(plan.pipeline.sinks)
    reader = WindowReader(rows=_reader_of(state, plan, dsn), key=windows.key, lateness=windows.lateness)
    known = keep(read_windows(placed_in_windows(rows, windows), reader, before, after))
    out = windowed(rows, known, windows, before=_moment(before), after=_moment(after))
    results = out.results
    if isinstance(windows, QueryWindows):
        results = query_results(results, windows, before=_moment(before))
    too_late = keep(out.too_late)
    rows_of = _declared_rows(plan.pipeline)
    frames = {rows_of[windows.into]: results, state.table: out.state}
    # A sum of floats depends on the order of its terms.
    _compute_once(frames, [rows, known], keep)
    if windows.too_late is not None:
        frames[rows_of[windows.too_late]] = too_late
    return frames, Made(watermark=after, too_late=too_late.count())


def _compute_once(frames: Mapping[str, DataFrame], given: Sequence[DataFrame], keep: _Keep) -> None:
    """Let the one job that writes several frames compute once what they have in common.

    Two executors of that job could compute the same block at the same time, each in its own way. So the blocks are
    computed before it, unless there is one executor, which locks a block that it computes.
    """
    spark = given[0].sparkSession
    common = [keep(one) for one in in_common(spark, frames.values(), given)]
    if not has_one_executor(spark):
        for one in common:
            one.count()


def _reader_of(state: StateTable, plan: AttemptPlan, dsn: str) -> StateReader:
    return StateReader(ticket=plan.ticket, table=state.table, key=state.key, columns=state.columns or {}, dsn=dsn)


def _declared_rows(pipeline: Pipeline) -> dict[str, str]:
    """Staging name of each sink, by its name in a transform's result."""
    return {one.name: one.staged_as for one in pipeline.outputs}


def _moment(watermark: datetime | None) -> Column:
    return F.lit(watermark).cast("timestamp")


@contextmanager
def _kept() -> Iterator[_Keep]:
    """Persist frames that are read more than once until the end of the block."""
    frames: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        frames.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frames[-1]

    try:
        yield keep
    finally:
        for one in frames:
            one.unpersist()
