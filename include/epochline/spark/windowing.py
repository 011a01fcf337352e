"""Windows joined to epochs: what an epoch's records and the windows still open become. Spark SQL does the rest.

Three frames come out of records and state: results to write, windows to keep or to forget, and records that came too
late. All by the two watermarks of `epochline.event_time`: ``before`` judges what is late, ``after`` closes windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from epochline.layout import DELETED
from epochline.spark.parsed import quoted
from epochline.windowed import END, START, Windowed
from epochline.windows import Session, Sliding, Tumbling

_TOUCHED, _KNOWN, _ISLAND = "_touched", "_known", "_island"
_BEFORE, _AFTER = "_before", "_after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """What an epoch makes of its windows.

    Args:
        results: key, ``window_start``, ``window_end``, aggregates, ``_deleted``: rows to write, or to take back because
            their session became part of another.
        state: the same columns: windows to keep, or to forget.
        too_late: records, with every column that they had.
    """

    results: DataFrame
    state: DataFrame
    too_late: DataFrame


def windowed(
    rows: DataFrame, state: DataFrame, declared: Windowed, moment: Column, *, before: Column, after: Column
) -> Out:
    """Put records into their windows, merge them with the windows that are open, and close what is over.

    Args:
        rows: the epoch's records.
        state: key, ``window_start``, ``window_end``, aggregates: of every window that a record of these keys could
            touch, and of every window that ends between the two watermarks, the lateness included.
        declared: the aggregation.
        moment: event time of a row, a timestamp that is never NULL.
        before: the watermark of the epoch before; NULL where there is none.
        after: the watermark that this epoch leaves; NULL where there is none.
    """
    aggregates = declared.read_aggregates
    by = [*declared.key, _BEFORE, _AFTER]
    state = state.withColumns({_BEFORE: before, _AFTER: after})
    placed = _placed(rows.withColumns({_BEFORE: before, _AFTER: after}), declared, moment)
    if isinstance(declared.window, Session):
        late = placed.where(F.lit(False)).drop(START, END)
    else:
        late = placed.where(_forgotten(declared.lateness, _BEFORE))
        placed = placed.where(~_forgotten(declared.lateness, _BEFORE))
    new = placed.groupBy(*_columns([*by, START, END])).agg(
        *(
            F.expr(f"{one.function}({'*' if one.column is None else quoted(one.column)})").alias(name)
            for name, one in aggregates.items()
        )
    )
    both = _marked(state, known=True).unionByName(_marked(new, known=False))
    if isinstance(declared.window, Session):
        merged, absorbed = _sessions(both, by, declared)
    else:
        merged, absorbed = _same_windows(both, by, declared), None
    return _out(merged, absorbed, late, declared)


def _out(merged: DataFrame, absorbed: DataFrame | None, late: DataFrame, declared: Windowed) -> Out:
    names = [*declared.key, START, END, *declared.aggregates]
    changed = F.col(_TOUCHED) | _newly_closed()
    results = merged.where(_closed(_AFTER) & changed).withColumn(DELETED, F.lit(False))
    gone = _forgotten(declared.lateness, _AFTER)
    kept = merged.where(F.col(_TOUCHED) | gone).withColumn(DELETED, gone)
    # A window that is new and forgotten at once was never kept.
    kept = kept.where(~F.col(DELETED) | F.col(_KNOWN))
    if absorbed is not None:
        taken_back = absorbed.withColumn(DELETED, F.lit(True))
        results = results.unionByName(taken_back.where(_closed(_BEFORE)), allowMissingColumns=True)
        kept = kept.unionByName(taken_back, allowMissingColumns=True)
    picked = _columns([*names, DELETED])
    return Out(results=results.select(*picked), state=kept.select(*picked), too_late=late.drop(_BEFORE, _AFTER))


def _placed(rows: DataFrame, declared: Windowed, moment: Column) -> DataFrame:
    match declared.window:
        case Tumbling(size=size):
            window = F.window(moment, _interval(size))
        case Sliding(size=size, slide=slide):
            window = F.window(moment, _interval(size), _interval(slide))
        case Session(gap=gap):
            return rows.withColumns({START: moment, END: moment + _lasting(gap)})
    placed = rows.withColumn("_window", window)
    return placed.withColumns({START: F.col("_window.start"), END: F.col("_window.end")}).drop("_window")


def _same_windows(both: DataFrame, by: Sequence[str], declared: Windowed) -> DataFrame:
    return both.groupBy(*_columns([*by, START, END])).agg(
        *_merged(declared), F.max(_TOUCHED).alias(_TOUCHED), F.max(_KNOWN).alias(_KNOWN)
    )


def _sessions(both: DataFrame, by: Sequence[str], declared: Windowed) -> tuple[DataFrame, DataFrame]:
    """Sessions that overlap become one; and the known ones that are part of another now, under another start."""
    in_order = Over.partitionBy(*_columns(by)).orderBy(START, END)
    earlier = in_order.rowsBetween(Over.unboundedPreceding, -1)
    reached = F.max(END).over(earlier)
    begins = F.when(reached.isNull() | (F.col(START) >= reached), 1).otherwise(0)
    numbered = both.withColumn("_begins", begins).withColumn(_ISLAND, F.sum("_begins").over(in_order))
    island = Over.partitionBy(*_columns([*by, _ISLAND]))
    first = F.min(START).over(island)
    absorbed = numbered.withColumn("_first", first).where(F.col(_KNOWN) & (F.col(START) > F.col("_first")))
    merged = numbered.groupBy(*_columns([*by, _ISLAND])).agg(
        F.min(START).alias(START), F.max(END).alias(END), *_merged(declared),
        F.max(_TOUCHED).alias(_TOUCHED), F.max(_KNOWN).alias(_KNOWN),
    )  # fmt: skip
    return merged, absorbed


def _merged(declared: Windowed) -> list[Column]:
    return [F.expr(f"{one.merges_by}({quoted(name)})").alias(name) for name, one in declared.read_aggregates.items()]


def _marked(frame: DataFrame, *, known: bool) -> DataFrame:
    return frame.withColumns({_TOUCHED: F.lit(not known), _KNOWN: F.lit(known)})


def _closed(mark: str) -> Column:
    return F.coalesce(F.col(END) <= F.col(mark), F.lit(False))


def _newly_closed() -> Column:
    return ~_closed(_BEFORE)


def _forgotten(lateness: timedelta, mark: str) -> Column:
    return F.coalesce(F.col(END) + _lasting(lateness) <= F.col(mark), F.lit(False))


def _interval(duration: timedelta) -> str:
    return f"{duration // timedelta(microseconds=1)} microseconds"


def _lasting(duration: timedelta) -> Column:
    return F.expr(f"INTERVAL {_interval(duration)}")


def _columns(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]
