"""Computes windows over an epoch's records and the open windows with Spark SQL, and streaming SQL around them.

The outputs are results to write, windows to keep or to drop, and records that came too late. Two watermarks decide
(`epochline.declare.event_time`): ``before`` decides which records are late, ``after`` which windows close.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from operator import and_

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochline.declare.aggregation import Windowed
from epochline.declare.columns import DELETED, END, START
from epochline.declare.event_time import Session, Sliding, Tumbling
from epochline.declare.windowed_query import QueryWindows
from epochline.errors import DeclarationError
from epochline.spark.part_rows import quoted, spark_schema

_TOUCHED, _KNOWN, _ISLAND, _FORMER = "_touched", "_known", "_island", "_former"
_BEFORE, _AFTER, _AT = "_before", "_after", "_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """Outputs of an epoch's windows.

    ``results`` and ``state`` have key, ``window_start``, ``window_end``, aggregates and ``_deleted``.
    """

    results: DataFrame
    """A result is deleted if its session has merged into another or has reopened. With ``retractions``, the declared
    flag takes the place of ``_deleted``: false in the rows that repeat a former result, true in the others."""
    state: DataFrame
    """Windows to keep or, if ``_deleted``, to drop."""
    too_late: DataFrame
    """Records that came too late for every window, with all their columns."""


def windowed(rows: DataFrame, state: DataFrame, declared: Windowed, *, before: Column, after: Column) -> Out:
    """Put records into windows, merge these with the open windows, and close windows that have ended.

    Event time and key of ``rows`` are not NULL. ``state`` has key, ``window_start``, ``window_end`` and aggregates of
    every window that a record of these keys could touch, and of every window that ends, or whose lateness ends, between
    the two watermarks: ``before`` of the previous epoch, ``after`` of this one. Both may be NULL.
    """
    columns = rows.columns
    by = [*declared.key, _BEFORE, _AFTER]
    kept = _columns([*by, START, END, *declared.aggregates])
    state = state.withColumns({_BEFORE: before, _AFTER: after}).select(*kept)
    rows = rows.withColumns({_BEFORE: before, _AFTER: after, _AT: F.col(quoted(declared.time.column))})
    if isinstance(declared.window, Session):
        expired = F.lit(False)
        placed = placed_in_windows(rows, declared)
    else:
        expired = _forgotten(declared.lateness, _BEFORE, _end_of_last_window(declared.window))
        placed = placed_in_windows(rows.where(~expired), declared).where(~_forgotten(declared.lateness, _BEFORE))
    new = placed.groupBy(*_columns([*by, START, END])).agg(*_aggregates(declared))
    stored_and_new = _marked(state, stored=True).unionByName(_marked(new, stored=False))
    if not isinstance(declared.window, Session):
        merged = stored_and_new.groupBy(*_columns([*by, START, END])).agg(*_merged(declared), _former(declared))
        return _out(merged, None, rows.where(expired).select(*_columns(columns)), declared)
    islands = _islands(stored_and_new, by)
    # A late record counts if it extends a kept session; otherwise it would begin a session that has already ended.
    alone = ~F.col("_island_known") & _forgotten(declared.lateness, _BEFORE, F.col("_island_end"))
    late = _of_sessions(rows, islands.where(alone), declared).select(*_columns(columns))
    sessions = islands.where(~alone)
    merged = sessions.groupBy(*_columns([*by, _ISLAND])).agg(
        F.min(START).alias(START), F.max(END).alias(END), *_merged(declared)
    )
    return _out(merged, sessions.where(_KNOWN), late, declared)


def placed_in_windows(rows: DataFrame, declared: Windowed) -> DataFrame:
    """Add ``window_start`` and ``window_end`` to rows; a row appears once for each of its windows."""
    moment = F.col(quoted(declared.time.column))
    match declared.window:
        case Tumbling(size=size):
            window = F.window(moment, _interval(size))
        case Sliding(size=size, slide=slide):
            window = F.window(moment, _interval(size), _interval(slide))
        case Session(gap=gap):
            return rows.withColumns({START: moment, END: moment + _lasting(gap)})
    placed = rows.withColumn("_window", window)
    return placed.withColumns({START: F.col("_window.start"), END: F.col("_window.end")}).drop("_window")


def _out(merged: DataFrame, stored_sessions: DataFrame | None, late: DataFrame, declared: Windowed) -> Out:
    names = [*declared.key, START, END, *declared.aggregates]
    changed = F.col(_TOUCHED) | ~_closed(_BEFORE)
    results = merged.where(_closed(_AFTER) & changed)
    dropped = _forgotten(declared.lateness, _AFTER)
    kept = merged.where(F.col(_TOUCHED) | dropped).withColumn(DELETED, dropped)
    # A new window that is dropped at once was never stored.
    kept = kept.where(~F.col(DELETED) | F.col(_KNOWN))
    picked = _columns([*names, DELETED])
    results, kept = results.select(*_columns(names)), kept.select(*picked)
    if stored_sessions is None:
        # A window that had ended before this epoch has a result, which its stored aggregates repeat.
        reported = merged.where(F.col(_KNOWN) & _closed(_BEFORE))
        replaced, withdrawn = reported.where(_TOUCHED), None
        replaced = replaced.select(*_columns([*declared.key, START, END]), f"{_FORMER}.*")
    else:
        # A stored session may have merged into an earlier one, or may have reopened after it was closed.
        absorbed = F.col(START) > F.col("_island_start")
        goes_on = ~_closed(_AFTER, F.col("_island_end"))
        reported = stored_sessions.where(_closed(_BEFORE))
        replaced = reported.where("_island_touched").select(*_columns(names))
        withdrawn = reported.where(absorbed | goes_on).select(*_columns(names))
        kept = kept.unionByName(stored_sessions.where(absorbed).withColumn(DELETED, F.lit(True)).select(*picked))
    if declared.retractions is None:
        results = _flagged(DELETED, {False: results} | ({} if withdrawn is None else {True: withdrawn}))
    else:
        results = _flagged(declared.retractions, {False: replaced, True: results})
    return Out(results=results, state=kept, too_late=late)


def _flagged(flag: str, frames: Mapping[bool, DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, (frame.withColumn(flag, F.lit(on)) for on, frame in frames.items()))


def _former(declared: Windowed) -> Column:
    """The stored aggregates of a window. At most one row of each window is stored."""
    stored = F.when(F.col(_KNOWN), F.struct(*_columns(list(declared.aggregates))))
    return F.first(stored, ignorenulls=True).alias(_FORMER)


def _islands(sessions: DataFrame, by: Sequence[str]) -> DataFrame:
    """Number overlapping sessions alike, and add the common start, end and known mark of each group."""
    in_order = Over.partitionBy(*_columns(by)).orderBy(START, END)
    reached = F.max(END).over(in_order.rowsBetween(Over.unboundedPreceding, -1))
    begins = F.when(reached.isNull() | (F.col(START) >= reached), 1).otherwise(0)
    numbered = sessions.withColumn("_begins", begins).withColumn(_ISLAND, F.sum("_begins").over(in_order))
    island = Over.partitionBy(*_columns([*by, _ISLAND]))
    return numbered.withColumns(
        {
            "_island_start": F.min(START).over(island),
            "_island_end": F.max(END).over(island),
            "_island_known": F.max(_KNOWN).over(island),
            "_island_touched": F.max(_TOUCHED).over(island),
        }
    )


def _of_sessions(rows: DataFrame, sessions: DataFrame, declared: Windowed) -> DataFrame:
    """The rows of the given sessions: a single record's session begins at the record's time."""
    names = {name: f"_of_{at}" for at, name in enumerate((*declared.key, START))}
    wanted = sessions.select(*(F.col(quoted(name)).alias(alias) for name, alias in names.items()))
    conditions = [F.col(quoted(_AT if name == START else name)) == F.col(alias) for name, alias in names.items()]
    return rows.join(wanted, on=reduce(and_, conditions), how="left_semi")


def _aggregates(declared: Windowed) -> list[Column]:
    return [
        F.expr(f"{aggregate.function}({'*' if aggregate.column is None else quoted(aggregate.column)})").alias(name)
        for name, aggregate in declared.read_aggregates.items()
    ]


def _merged(declared: Windowed) -> list[Column]:
    aggregates = declared.read_aggregates.items()
    return [
        *(F.expr(f"{aggregate.merges_by}({quoted(name)})").alias(name) for name, aggregate in aggregates),
        F.max(_TOUCHED).alias(_TOUCHED),
        F.max(_KNOWN).alias(_KNOWN),
    ]


def _marked(frame: DataFrame, *, stored: bool) -> DataFrame:
    return frame.withColumns({_TOUCHED: F.lit(not stored), _KNOWN: F.lit(stored)})


def _end_of_last_window(window: Tumbling | Sliding) -> Column:
    """End of the last window of a row, by its ``_at``: the row is too late once even this window is dropped."""
    step = window.size if isinstance(window, Tumbling) else window.slide
    moment = F.unix_micros(_AT)
    return F.timestamp_micros(moment - F.pmod(moment, F.lit(_micros(step))) + F.lit(_micros(window.size)))


def _closed(mark: str, end: Column | None = None) -> Column:
    return F.coalesce((F.col(END) if end is None else end) <= F.col(mark), F.lit(False))


def _forgotten(lateness: timedelta, mark: str, end: Column | None = None) -> Column:
    return _closed(mark, (F.col(END) if end is None else end) + _lasting(lateness))


def _micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _interval(duration: timedelta) -> str:
    return f"{_micros(duration)} microseconds"


def _lasting(duration: timedelta) -> Column:
    return F.expr(f"INTERVAL {_interval(duration)}")


def _columns(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def query_rows(rows: DataFrame, query: QueryWindows) -> DataFrame:
    """Keep the records that WHERE takes, and add the arguments of the aggregates as columns."""
    selected = rows if query.where is None else rows.where(F.expr(query.where))
    return selected.withColumns({name: F.expr(text) for name, text in query.arguments.items()})


def query_results(results: DataFrame, query: QueryWindows, *, before: Column) -> DataFrame:
    """Compute the result columns of windows that `windowed` returned, and apply HAVING.

    A window that HAVING does not take has no result. Its row is deleted if an earlier epoch may have written one.
    """
    # A sum of partial sums is wider than the sum itself.
    types = from_arrow_schema(spark_schema(query.types))
    results = results.withColumns({field.name: F.col(quoted(field.name)).cast(field.dataType) for field in types})
    if query.having is not None:
        refused = ~F.coalesce(F.expr(query.having), F.lit(False)) & ~F.col(DELETED)
        results = results.withColumn("_refused", refused)
        if not isinstance(query.window, Session):
            results = results.where(~F.col("_refused") | F.coalesce(F.col(END) <= before, F.lit(False)))
        results = results.withColumn(DELETED, F.col(DELETED) | F.col("_refused"))
    key = query.result_key or ()
    columns = {name: F.expr(text) for name, text in query.results.items()}
    # HAVING may protect an expression, such as a division by a count that is not zero.
    shown_only = {name: result if name in key else F.when(~F.col(DELETED), result) for name, result in columns.items()}
    return results.select(*(result.alias(name) for name, result in shown_only.items()), DELETED)


def require_same_query(rows: DataFrame, query: QueryWindows) -> StructType:
    """Let Spark parse the declared text, and compare its plan with that of the query as it was read and split.

    Only the types of ``rows`` are used. Returns the columns and types that Spark gives the declared query. Raises
    `DeclarationError` if Spark refuses the text, or reads it otherwise.
    """
    spark = rows.sparkSession
    schema = rows.select(*(quoted(name) for name in query.record)).schema
    try:
        records = spark.createDataFrame([], schema)
        declared = spark.sql(query.query, args=query.parameters or None, records=records)
        reread = spark.sql(query.text, records=records)
        parts = query_results(_partials(query_rows(records, query), query), query, before=F.lit(None))
    except (AnalysisException, ParseException) as error:
        raise DeclarationError(f"windows.query: Spark refuses it: {str(error).strip().splitlines()[0]}") from error
    declared_types = {field.name: field.dataType for field in declared.schema}
    split_types = {field.name: field.dataType for field in parts.drop(DELETED).schema}
    if not declared.sameSemantics(reread) or declared_types != split_types:
        raise DeclarationError(
            f"windows.query: Spark reads it otherwise than Epochline. Spark gives {declared.schema.simpleString()};"
            f" Epochline has read: {query.text}. Write the expressions in which they differ another way"
        )
    return declared.schema


def _partials(rows: DataFrame, query: QueryWindows) -> DataFrame:
    """An empty frame with the columns and types of partial aggregates before they are stored."""
    moments = {name: F.lit(None).cast("timestamp") for name in (START, END)}
    partials = rows.groupBy(*(quoted(name) for name in query.key)).agg(*_aggregates(query))
    types = {field.name: field.dataType for field in from_arrow_schema(spark_schema(query.types))}
    wrong = [field.name for field in partials.schema if field.name in types and field.dataType != types[field.name]]
    if wrong:
        raise DeclarationError(f"windows.query: Spark gives {wrong[0]} another type than {query.types[wrong[0]]}")
    return partials.withColumns(moments).withColumn(DELETED, F.lit(False))
