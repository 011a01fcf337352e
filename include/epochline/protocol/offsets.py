"""Offset ranges, heads and the balances of an epoch. Pure arithmetic on half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from epochline.protocol.epoch import Counts
from epochline.protocol.quantities import runs


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicPartition:
    """One partition of one *incarnation* of a topic: a topic made again under its name has another id."""

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def places(partitions: Iterable[TopicPartition]) -> str:
    """Names partitions by topic, with ranges: ``orders-3``, ``partitions 0-7 of orders``."""
    by_topic: dict[str, list[int]] = {}
    for one in sorted(partitions):
        by_topic.setdefault(one.topic, []).append(one.partition)
    return ", ".join(
        f"{topic}-{numbers[0]}" if len(numbers) == 1 else f"partitions {runs(numbers)} of {topic}"
        for topic, numbers in by_topic.items()
    )


Reached = Mapping[TopicPartition, int]
"""By partition, the offset at which the next epoch begins: earlier offsets were committed or declared lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets ``[start, until)``: ``until`` is the next offset to read."""

    start: int
    until: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.until <= self.start:
            raise ValueError(f"an offset range needs 0 <= start < until, got [{self.start}, {self.until})")

    def __len__(self) -> int:
        return self.until - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.until})"


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The same offsets in as few ranges as possible, sorted."""
    found: list[OffsetRange] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if found and one.start <= found[-1].until:
            found[-1] = OffsetRange(start=found[-1].start, until=max(found[-1].until, one.until))
        else:
            found.append(one)
    return found


def left_out(of: OffsetRange, taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of a range that none of the others has, sorted."""
    left, start = [], of.start
    for one in joined(taken):
        if start < min(one.start, of.until):
            left.append(OffsetRange(start=start, until=min(one.start, of.until)))
        start = max(start, one.until)
    return [*left, OffsetRange(start=start, until=of.until)] if start < of.until else left


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """The range that one epoch reads from one partition, and the partition's leader epoch at the plan.

    ``records`` is how many the sealed attempt read; None before the seal, and for a range without records.
    """

    tp: TopicPartition
    range: OffsetRange
    leader_epoch: int | None = None
    records: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.tp}{self.range}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How far a partition is committed: ``[origin, next_offset)``, last by epoch ``epoch_id``.

    ``epoch_id`` is None while the partition has only its origin.
    """

    tp: TopicPartition
    origin: int
    next_offset: int
    epoch_id: int | None = None
    leader_epoch: int | None = None
    log_end: int | None = None
    """Where the log ended when the epoch was planned; None if the ledger does not know."""


def stored_reached(heads: Iterable[Head]) -> list[dict[str, Any]]:
    """Heads as JSON, by topic: for each partition its ``origin``, ``next`` offset and ``leader_epoch``."""
    topics: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for head in sorted(heads, key=lambda one: one.tp):
        held = topics.setdefault((head.tp.topic, head.tp.topic_id), {"origin": {}, "next": {}, "leader_epoch": {}})
        partition = str(head.tp.partition)
        held["origin"][partition] = head.origin
        held["next"][partition] = head.next_offset
        if head.leader_epoch is not None:
            held["leader_epoch"][partition] = head.leader_epoch
    return [{"topic": topic, "topic_id": topic_id, **held} for (topic, topic_id), held in topics.items()]


def stored_heads(stored: Iterable[Mapping[str, Any]]) -> list[Head]:
    """Parse the result of `stored_reached`. An older version wrote no origins; they are 0 then.

    Raises:
        ValueError: `stored_reached` did not write it.
    """
    origins, leader_epochs = origins_of(stored), _held(stored, "leader_epoch")
    return [
        Head(tp=tp, origin=origins.get(tp, 0), next_offset=offset, leader_epoch=leader_epochs.get(tp))
        for tp, offset in reached_of(stored).items()
    ]


def reached_of(stored: Iterable[Mapping[str, Any]]) -> Reached:
    """Next offsets in the result of `stored_reached`.

    Raises:
        ValueError: `stored_reached` did not write it.
    """
    return _held(stored, "next", always=True)


def origins_of(stored: Iterable[Mapping[str, Any]]) -> Reached:
    """Origins in the result of `stored_reached`; empty if an older version wrote it.

    Raises:
        ValueError: `stored_reached` did not write it.
    """
    return _held(stored, "origin")


def cut_reached(stored: Iterable[Mapping[str, Any]], cuts: Reached) -> list[dict[str, Any]]:
    """The result of `stored_reached`, with no partition beyond its cut.

    Raises:
        ValueError: `stored_reached` did not write it.
    """
    return stored_reached(
        replace(head, origin=min(head.origin, until), next_offset=min(head.next_offset, until))
        for head in stored_heads(stored)
        for until in [cuts.get(head.tp, head.next_offset)]
    )


def _held(stored: Iterable[Mapping[str, Any]], what: str, *, always: bool = False) -> Reached:
    try:
        return {
            TopicPartition(topic=one["topic"], topic_id=one["topic_id"], partition=int(partition)): int(offset)
            for one in stored
            for partition, offset in (one[what] if always else one.get(what, {})).items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{stored!r} names no offsets of partitions") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the pipeline begins in a partition, recorded once, before the first read (S9, INV-1)."""

    tp: TopicPartition
    offset: int
    chosen_by: str
    leader_epoch: int | None = None
    same_log_until: int | None = None
    """Of an adopted log: up to where it is the log that earlier generations read; None if nothing was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounts:
    """Records of one Kafka partition that a part, or a whole attempt, received.

    ``digest`` is the order-free source digest: the sum of the records' 64-bit hashes modulo 2**64. ``newest`` is the
    newest event time of a good record, if the pipeline has event time; a watermark that a record carries counts as one
    that is newer by ``out_of_orderness``. ``oldest_timestamp`` and ``newest_timestamp`` are the least and the greatest
    of Kafka's own timestamps, of bad records too; None if no record has a usable one.
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
        firsts = [o for o in (self.first_offset, other.first_offset) if o is not None]
        lasts = [o for o in (self.last_offset, other.last_offset) if o is not None]
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


def add_up(
    parts: Iterable[Mapping[tuple[str, int], PartitionCounts]],
) -> dict[tuple[str, int], PartitionCounts]:
    """Sum the messages of parts, keyed by (topic, partition)."""
    total: dict[tuple[str, int], PartitionCounts] = {}
    for part in parts:
        for key, counts in part.items():
            total[key] = total.get(key, NOTHING_SEEN) + counts
    return total


def chain_breaks(ranges: Sequence[tuple[int | None, int]]) -> list[str]:
    """List the breaks in the chain of committed ranges ``(start, until)`` of one partition (INV-1).

    The origin has start None. An empty list means that the chain is whole.
    """
    breaks: list[str] = []
    origins = [until for start, until in ranges if start is None]
    if len(origins) != 1:
        breaks.append(f"{len(origins)} origins, one is needed")
        return breaks
    head = origins[0]
    for start, until in sorted((s, u) for s, u in ranges if s is not None):
        if start != head:
            breaks.append(f"{'gap' if start > head else 'overlap'} at [{head}, {start})")
        if until <= start:
            breaks.append(f"empty or backward range [{start}, {until})")
        head = until
    return breaks


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGaps:
    """The offsets of a range that can give no record.

    ``invisible`` counts transaction markers and records of aborted transactions. At ``holes`` the log has nothing.
    """

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

    Per partition ``until - start = read + invisible + holes`` and ``read = passed + skipped + quarantined``. Elsewhere
    than in the topics of ``invisible_allowed`` (compacted, or declared to have gaps), ``invisible`` and holes must be
    what the log was found to have. `undeclared` says which holes nobody declared lost.

    Args:
        planned: the epoch's ranges.
        seen: what the parts received, keyed by (topic, partition).
        invisible_allowed: names of topics in which offsets without a visible record are expected.
        counted: how many records the source itself counts in the ranges, keyed alike; empty if it does not count.
        gaps: what the log was found to have, keyed alike, for ranges of which offsets gave no record.
    """
    problems: list[str] = []
    for one in planned:
        key = (one.tp.topic, one.tp.partition)
        got = seen.get(key, NOTHING_SEEN)
        invisible = len(one.range) - got.received
        if got.received != got.passed + got.skipped + got.quarantined:
            problems.append(
                f"{one}: read {got.received}, but passed {got.passed} + skipped {got.skipped}"
                f" + quarantined {got.quarantined}"
            )
        if invisible < 0:
            problems.append(f"{one}: {got.received} records read from {len(one.range)} offsets")
        elif invisible and one.tp.topic not in invisible_allowed:
            found = gaps.get(key, LogGaps(invisible=0))
            explained = found.invisible + sum(map(len, found.holes))
            if invisible != explained:
                problems.append(
                    f"{one}: {invisible} of {len(one.range)} offsets gave no record, and {one.tp.topic} is not"
                    f" compacted; its log explains {explained} of them"
                )
        if counted.get(key, got.received) != got.received:
            problems.append(f"{one}: the source counts {counted[key]} records, and {got.received} were read")
        if got.first_offset is not None and got.last_offset is not None:
            outside = got.first_offset < one.range.start or got.last_offset >= one.range.until
            if outside:
                problems.append(
                    f"{one}: records from offset {got.first_offset} to {got.last_offset} lie outside the range"
                )
    expected = {(one.tp.topic, one.tp.partition) for one in planned}
    problems += [f"{topic}-{p}: read, but not planned" for topic, p in sorted(set(seen) - expected)]
    return problems


def undeclared(
    gaps: Mapping[tuple[str, int], LogGaps], declared: Mapping[tuple[str, int], Sequence[OffsetRange]]
) -> dict[tuple[str, int], list[OffsetRange]]:
    """The holes of logs that no operator declared lost, keyed by (topic, partition)."""
    found = {
        key: [part for hole in of.holes for part in left_out(hole, declared.get(key, ()))] for key, of in gaps.items()
    }
    return {key: holes for key, holes in found.items() if holes}


def unclaimed(claims: Mapping[tuple[str, int], int], seen: Mapping[tuple[str, int], PartitionCounts]) -> list[str]:
    """List the partitions of a requeue epoch that do not balance at the seal (INV-9): every claimed record is read.

    Args:
        claims: how many quarantined records the epoch claimed, keyed by (topic, partition).
        seen: what the parts received, keyed alike.
    """
    problems = []
    for topic, partition in sorted({*claims, *seen}):
        claimed, got = claims.get((topic, partition), 0), seen.get((topic, partition), NOTHING_SEEN)
        if got.received != claimed or got.received != got.passed + got.skipped + got.quarantined:
            problems.append(
                f"{topic}-{partition}: {claimed} quarantined records were claimed and {got.received} read; passed"
                f" {got.passed} + skipped {got.skipped} + quarantined {got.quarantined}"
            )
    return problems
