"""Which offsets of a range can give no record, by the batches that the log holds.

librdkafka gives neither control records nor the records of aborted transactions, and a broker forgets the producers
that wrote them. The batches stay in the log, and say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka.errors import UnsupportedCodecError
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from epochline.errors import SourceError
from epochline.protocol.balances import LogGaps
from epochline.protocol.offsets import OffsetRange, joined, left_out

_EMPTY_ANSWERS = 3
"""After so many empty answers in a row the log has no batch in the rest of a range."""


def log_gaps(key: KafkaPartition, wanted: OffsetRange, call: Callable[..., Any]) -> LogGaps:
    """Read the batches of a range and sort its offsets: records, offsets without a visible record, and holes.

    Args:
        key: the partition.
        wanted: ends at the last stable offset or before it, so that every transaction in it has ended.
        call: calls a method of the admin client by name.

    Raises:
        SourceError: a batch cannot be decompressed.
    """
    held: list[OffsetRange] = []
    position, invisible, empty = wanted.start, 0, 0
    while position < wanted.until and empty < _EMPTY_ANSWERS:
        records, aborted = call("fetch_batches", key, position)
        before = position
        for batch in _batches(records, aborted):
            inside = [one for one in (_common(wanted, part) for part in batch.offsets) if one is not None]
            # A batch may begin before the position that was asked for, and was counted then.
            inside = [one for one in inside if one.start >= before]
            held += inside
            invisible += 0 if batch.is_visible else sum(map(len, inside))
            position = max(position, batch.until)
        empty = 0 if position > before else empty + 1
    return LogGaps(invisible=invisible, holes=tuple(left_out(wanted, held)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The offsets that a batch holds, the offset after it, and whether a consumer gets its records."""

    offsets: Sequence[OffsetRange]
    until: int
    is_visible: bool


def _batches(records: bytes, aborted: Iterable[tuple[int, int]]) -> Iterator[_Batch]:
    """The batches of an answer.

    Args:
        records: as the broker sent them.
        aborted: producer and first offset of each aborted transaction in them.
    """
    waiting = sorted(aborted, key=lambda one: one[1])
    aborting: set[int] = set()
    for batch in MemoryRecords(records):
        if not isinstance(batch, DefaultRecordBatch):
            offsets = joined(OffsetRange(start=one.offset, until=one.offset + 1) for one in batch)
            yield _Batch(offsets, offsets[-1].until, is_visible=True)
            continue
        while waiting and waiting[0][1] <= batch.last_offset:
            aborting.add(waiting.pop(0)[0])
        is_aborted = batch.is_transactional and batch.producer_id in aborting
        offsets = _offsets(batch)
        if batch.is_control_batch and next(batch).abort:
            aborting.discard(batch.producer_id)
        yield _Batch(offsets, batch.last_offset + 1, is_visible=not batch.is_control_batch and not is_aborted)


def _offsets(batch: DefaultRecordBatch) -> list[OffsetRange]:
    """The offsets that a batch holds: all of its span, unless compaction took some of its records."""
    if batch.records_count == batch.last_offset - batch.base_offset + 1:
        return [OffsetRange(start=batch.base_offset, until=batch.last_offset + 1)]
    try:
        return joined(OffsetRange(start=one.offset, until=one.offset + 1) for one in batch)
    except UnsupportedCodecError as error:
        raise SourceError(
            f"offsets [{batch.base_offset}, {batch.last_offset + 1}) cannot be decompressed: {error}"
        ) from error


def _common(wanted: OffsetRange, other: OffsetRange) -> OffsetRange | None:
    start, until = max(wanted.start, other.start), min(wanted.until, other.until)
    return OffsetRange(start=start, until=until) if start < until else None
