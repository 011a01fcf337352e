"""Event times of a batch, by topic and partition: the newest record, and the watermarks that records carry (E11, N6).

A watermark that a record carries counts as a record that is newer by the declared ``out_of_orderness``. So the
watermark of its partition is at least the carried one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type
from epochline.declare.specs import EventTimeSpec

EventTimes = Mapping[tuple[str, int], datetime]
"""By topic and partition."""

_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime(9999, 12, 31, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


def newest_times(rows: pa.RecordBatch, time: EventTimeSpec) -> EventTimes:
    """The newest event time of good records, or the time that a carried watermark stands for if that is later.

    Args:
        rows: parsed rows with the columns of ``time`` and their lineage.
        time: the declared event time.
    """
    times: pa.Array[Any] = rows[time.column]
    if time.punctuation is not None:
        # Arrow finds the greater one of two integers only.
        carried = _as_newest(time, _carried(time, times, rows[time.punctuation]))
        times = pc.max_element_wise(times.cast(pa.int64()), carried, skip_nulls=True).cast(times.type)
    return _latest(rows["_topic"], rows["_partition"], times)


def skipped_times(
    source: pa.RecordBatch,
    given: pa.RecordBatch,
    skipped: Sequence[int],
    time: EventTimeSpec,
    record: Mapping[str, str],
) -> tuple[EventTimes, dict[int, str]]:
    """The times that watermarks of skipped records stand for, and the reason for each row whose watermark is no time.

    A skipped record belongs to no window, so its own time does not count.

    Args:
        source: the source batch.
        given: rows of the parse, one per record.
        skipped: rows that the parse skips.
        time: the declared event time.
        record: columns and types of the parsed record.
    """
    if time.punctuation is None or time.punctuation not in given.schema.names:
        return {}, {}
    chosen = pa.array(skipped, pa.int64())
    problems: dict[int, str] = {}
    columns: dict[str, pa.Array[Any]] = {}
    for name in (time.column, time.punctuation):
        if name not in given.schema.names:
            columns[name] = pa.nulls(len(chosen), pa.timestamp("us", "UTC"))
            continue
        cast = cast_column(name, given.column(name).take(chosen), column_type(record[name]))
        columns[name] = cast.array
        if name == time.punctuation:
            problems |= {skipped[row]: reason for row, reason in cast.problems.items()}
    marks = columns[time.punctuation]
    if pa.types.is_boolean(marks.type):
        timeless = pc.and_(pc.fill_null(marks, False), pc.is_null(columns[time.column]))
        reason = f"{time.punctuation} is true, but {time.column} is NULL: the record carries no watermark"
        problems |= {skipped[row]: reason for row in pc.indices_nonzero(timeless).to_pylist()}
    carried = _carried(time, columns[time.column], marks)
    times = _as_newest(time, carried).cast(carried.type)
    topics, partitions = (source.column(name).take(chosen) for name in ("topic", "partition"))
    return _latest(topics, partitions, times), problems


def later(one: EventTimes, other: EventTimes) -> EventTimes:
    """The later time of each partition."""
    return {place: max(times[place] for times in (one, other) if place in times) for place in {**one, **other}}


def _carried(time: EventTimeSpec, times: pa.Array, marks: pa.Array) -> pa.Array:
    """The watermark that each row carries: the mark itself, or the row's time if the mark is a flag; else NULL."""
    if pa.types.is_boolean(marks.type):
        return pc.if_else(pc.fill_null(marks, False), times, pa.scalar(None, times.type))
    return marks


def _as_newest(time: EventTimeSpec, carried: pa.Array) -> pa.Array:
    """The time that each carried watermark stands for, in microseconds since 1970 and at most `_LAST`."""
    most = pa.scalar(_LAST, pa.int64())
    micros = pc.min_element_wise(carried.cast(pa.int64()), most, skip_nulls=False)
    return pc.min_element_wise(pc.add(micros, time.out_of_orderness // _MICROSECOND), most, skip_nulls=False)


def _latest(topics: pa.Array, partitions: pa.Array, times: pa.Array) -> EventTimes:
    table = pa.table({"topic": topics, "partition": partitions, "time": times})
    newest = table.group_by(["topic", "partition"]).aggregate([("time", "max")]).to_pylist()
    return {(row["topic"], row["partition"]): row["time_max"] for row in newest if row["time_max"] is not None}
