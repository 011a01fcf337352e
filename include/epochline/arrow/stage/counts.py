"""What source batches held, by topic and partition: numbers of records, their digest, and the span of their times.

The digest is an order-free sum of record hashes, equal on every machine. It shows whether two tries of a part read the
same records (INV-3), but it is not cryptographic.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import byte_layout, column_type
from epochline.declare.specs import EventTimeSpec
from epochline.protocol.balances import PartitionCounts

Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_SEED = np.uint64(0x9E3779B97F4A7C15)
# Rows up to this many bytes are hashed word by word, all rows at once. Longer ones are hashed one by one, because a
# value of 10 MB would take a million rounds of the loop.
_SHORT = 1024
_TAIL = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)
_WORD = "<u8"

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the digest needs a little-endian machine")


def _fold(state: Hashes, word: Hashes) -> Hashes:
    mixed = (state ^ word) * _MULTIPLIER
    return mixed ^ (mixed >> _SHIFT)


def _fold_bytes(state: Hashes, array: pa.Array) -> Hashes:
    starts, lengths, data = byte_layout(array)
    marks = lengths + 1
    if array.null_count:
        marks[np.asarray(array.is_null())] = 0  # a NULL is not an empty value
    state = _fold(state, marks.astype(np.uint64))
    long_rows = np.flatnonzero(lengths > _SHORT)
    if len(long_rows):
        hashed = [
            int.from_bytes(hashlib.blake2b(data[start : start + length], digest_size=8).digest(), "little")
            for start, length in zip(starts[long_rows].tolist(), lengths[long_rows].tolist(), strict=True)
        ]
        state[long_rows] = _fold(state[long_rows], np.array(hashed, np.uint64))
        lengths = np.where(lengths > _SHORT, 0, lengths)
    if len(lengths) == 0 or int(lengths.max()) == 0:
        return state
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) + 1,), _WORD, padded, 0, (1,))  # the word that begins at each byte
    everywhere = int(lengths.min()) // 8 * 8
    for at in range(0, everywhere, 8):
        state = _fold(state, words[starts + at])
    for at in range(everywhere, int(lengths.max()), 8):
        rows = np.flatnonzero(lengths > at)
        tail = words[starts[rows] + at] & _TAIL[np.minimum(lengths[rows] - at, 8)]
        state[rows] = _fold(state[rows], tail)
    return state


def record_hashes(batch: pa.RecordBatch) -> Hashes:
    """A 64-bit hash of each record's topic, partition, offset, key and value, in a batch of `SOURCE_SCHEMA`."""
    state = np.full(batch.num_rows, _SEED, np.uint64)
    topics = batch.column("topic").dictionary_encode()
    by_topic = [hashlib.blake2b(str(topic).encode(), digest_size=8).digest() for topic in topics.dictionary]
    words = np.frombuffer(b"".join(by_topic), _WORD)
    if batch.num_rows:
        state = _fold(state, words[np.asarray(topics.indices)])
    for name in ("partition", "offset"):
        state = _fold(state, np.asarray(batch.column(name)).astype(np.int64).view(np.uint64))
    for name in ("key", "value"):
        state = _fold_bytes(state, batch.column(name))
    return state


def digest(hashes: Hashes) -> int:
    """The order-free digest of records: the sum of their hashes modulo 2**64."""
    return int(hashes.sum(dtype=np.uint64))


_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime(9999, 12, 31, tzinfo=UTC) - _BEGIN) // _MICROSECOND
_NO_TIME = -1


def _span(timestamps: npt.NDArray[np.int64]) -> tuple[datetime | None, datetime | None]:
    """The oldest and newest of timestamps in microseconds; Kafka takes any number, and -1 stands for none."""
    if timestamps.size and not (timestamps.min() >= 0 and timestamps.max() <= _LAST):
        timestamps = timestamps[(timestamps >= 0) & (timestamps <= _LAST)]
    if not timestamps.size:
        return None, None
    oldest, newest = (_BEGIN + timedelta(microseconds=int(tick)) for tick in (timestamps.min(), timestamps.max()))
    return oldest, newest


CountsByPartition = dict[tuple[str, int], PartitionCounts]


def count_records(source: pa.RecordBatch, quarantined: Iterable[int], skip: npt.NDArray[np.bool_]) -> CountsByPartition:
    """Count the records of a source batch, of which some rows are quarantined and some skipped."""
    hashes = record_hashes(source)
    bad = np.zeros(source.num_rows, bool)
    bad[list(quarantined)] = True
    partitions = np.asarray(source.column("partition"))
    offsets = np.asarray(source.column("offset"))
    timestamps = np.asarray(pc.fill_null(source.column("timestamp").cast(pa.int64()), _NO_TIME))
    topics = source.column("topic").dictionary_encode()
    topic_of = np.asarray(topics.indices)
    counts: CountsByPartition = {}
    names: list[Any] = topics.dictionary.to_pylist()
    for at, topic in enumerate(names):
        for partition in np.unique(partitions[topic_of == at]).tolist():
            here = (topic_of == at) & (partitions == partition)
            received, wrong, skipped = (int(rows.sum()) for rows in (here, here & bad, here & skip))
            oldest, newest = _span(timestamps[here])
            counts[topic, partition] = PartitionCounts(
                received=received,
                passed=received - wrong - skipped,
                skipped=skipped,
                quarantined=wrong,
                first_offset=int(offsets[here].min()),
                last_offset=int(offsets[here].max()),
                digest=digest(hashes[here]),
                oldest_timestamp=oldest,
                newest_timestamp=newest,
            )
    return counts


EventTimes = Mapping[tuple[str, int], datetime]
"""By topic and partition."""


def newest_times(rows: pa.RecordBatch, time: EventTimeSpec) -> EventTimes:
    """The newest event time of good records, or the time that a carried watermark stands for if that is later."""
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
    """The times that watermarks of skipped records stand for, and the reason for each watermark that is no time."""
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
