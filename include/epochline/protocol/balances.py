"""The balances of an epoch: what was received of each partition, and whether it explains every offset (INV-9). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from epochline.protocol.epoch import Counts
from epochline.protocol.offsets import OffsetRange, PlannedRange, left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounts:
    """Records of one Kafka partition that a part, or a whole attempt, received.

    ``digest`` is order-free: the sum of the records' 64-bit hashes modulo 2**64. ``newest`` is the newest event time of
    a good record or a carried watermark. The timestamps are the bounds of Kafka's own, None if there is no usable one.
    """

    received: int
    passed: int
    skipped: int
    quarantined: int
    first_offset: int | None
    last_offset: int | None
    digest: int
    newest: datetime | None = None
    oldest_timestamp: datetime | None = None
    newest_timestamp: datetime | None = None

    @property
    def counts(self) -> Counts:
        """The same without offsets and digest."""
        return Counts(read=self.received, passed=self.passed, skipped=self.skipped, quarantined=self.quarantined)

    def __add__(self, other: PartitionCounts) -> PartitionCounts:
        firsts = [offset for offset in (self.first_offset, other.first_offset) if offset is not None]
        lasts = [offset for offset in (self.last_offset, other.last_offset) if offset is not None]
        times = [time for time in (self.newest, other.newest) if time is not None]
        oldest = [time for time in (self.oldest_timestamp, other.oldest_timestamp) if time is not None]
        newest = [time for time in (self.newest_timestamp, other.newest_timestamp) if time is not None]
        return PartitionCounts(
            received=self.received + other.received,
            passed=self.passed + other.passed,
            skipped=self.skipped + other.skipped,
            quarantined=self.quarantined + other.quarantined,
            first_offset=min(firsts, default=None),
            last_offset=max(lasts, default=None),
            digest=(self.digest + other.digest) % 2**64,
            newest=max(times, default=None),
            oldest_timestamp=min(oldest, default=None),
            newest_timestamp=max(newest, default=None),
        )


NOTHING_SEEN = PartitionCounts(
    received=0, passed=0, skipped=0, quarantined=0, first_offset=None, last_offset=None, digest=0
)


def add_up(parts: Iterable[Mapping[tuple[str, int], PartitionCounts]]) -> dict[tuple[str, int], PartitionCounts]:
    """Sum the messages of parts, keyed by (topic, partition)."""
    total: dict[tuple[str, int], PartitionCounts] = {}
    for part in parts:
        for key, counts in part.items():
            total[key] = total.get(key, NOTHING_SEEN) + counts
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGaps:
    """Offsets of a range without a record: ``invisible`` markers and aborted records, and ``holes`` in the log."""

    invisible: int
    holes: tuple[OffsetRange, ...] = ()


def unbalanced(
    planned: Sequence[PlannedRange],
    seen: Mapping[tuple[str, int], PartitionCounts],
    *,
    invisible_allowed: frozenset[str] = frozenset(),
    counted: Mapping[tuple[str, int], int] = MappingProxyType({}),
    gaps: Mapping[tuple[str, int], LogGaps] = MappingProxyType({}),
) -> list[str]:
    """List the partitions that do not balance at the seal (INV-9).

    Per partition ``until - start = read + invisible + holes`` and ``read = passed + skipped + quarantined``. Outside
    the topics of ``invisible_allowed``, ``invisible`` and holes must be the ``gaps`` that the log was found to have.
    ``counted`` has the source's own counts of records, empty if it does not count.
    """
    problems: list[str] = []
    for planned_range in planned:
        key = (planned_range.tp.topic, planned_range.tp.partition)
        counts = seen.get(key, NOTHING_SEEN)
        invisible = len(planned_range.range) - counts.received
        if counts.received != counts.passed + counts.skipped + counts.quarantined:
            problems.append(
                f"{planned_range}: read {counts.received}, but passed {counts.passed} + skipped {counts.skipped}"
                f" + quarantined {counts.quarantined}"
            )
        if invisible < 0:
            problems.append(f"{planned_range}: {counts.received} records read from {len(planned_range.range)} offsets")
        elif invisible and planned_range.tp.topic not in invisible_allowed:
            gap = gaps.get(key, LogGaps(invisible=0))
            explained = gap.invisible + sum(map(len, gap.holes))
            if invisible != explained:
                problems.append(
                    f"{planned_range}: {invisible} of {len(planned_range.range)} offsets gave no record, and"
                    f" {planned_range.tp.topic} is not compacted; its log explains {explained} of them"
                )
        if counted.get(key, counts.received) != counts.received:
            problems.append(
                f"{planned_range}: the source counts {counted[key]} records, and {counts.received} were read"
            )
        if counts.first_offset is not None and counts.last_offset is not None:
            outside = counts.first_offset < planned_range.range.start or counts.last_offset >= planned_range.range.until
            if outside:
                problems.append(
                    f"{planned_range}: records from offset {counts.first_offset} to {counts.last_offset} lie outside"
                    " the range"
                )
    expected = {(planned_range.tp.topic, planned_range.tp.partition) for planned_range in planned}
    problems += [f"{topic}-{partition}: read, but not planned" for topic, partition in sorted(set(seen) - expected)]
    return problems


def undeclared(
    gaps: Mapping[tuple[str, int], LogGaps], declared: Mapping[tuple[str, int], Sequence[OffsetRange]]
) -> dict[tuple[str, int], list[OffsetRange]]:
    """The holes of logs that no operator declared lost, keyed by (topic, partition)."""
    left = {
        key: [part for hole in gap.holes for part in left_out(hole, declared.get(key, ()))] for key, gap in gaps.items()
    }
    return {key: holes for key, holes in left.items() if holes}


def unclaimed(claims: Mapping[tuple[str, int], int], seen: Mapping[tuple[str, int], PartitionCounts]) -> list[str]:
    """List the partitions of a requeue epoch that do not balance at the seal (INV-9): every claimed record is read."""
    problems = []
    for topic, partition in sorted({*claims, *seen}):
        claimed, counts = claims.get((topic, partition), 0), seen.get((topic, partition), NOTHING_SEEN)
        if counts.received != claimed or counts.received != counts.passed + counts.skipped + counts.quarantined:
            problems.append(
                f"{topic}-{partition}: {claimed} quarantined records were claimed and {counts.received} read; passed"
                f" {counts.passed} + skipped {counts.skipped} + quarantined {counts.quarantined}"
            )
    return problems
