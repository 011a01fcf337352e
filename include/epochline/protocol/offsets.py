"""Partitions, offset ranges, heads and origins, and the names that the ledger has for those of several sources. Pure.

In the ledger, both the name and the id of a topic begin with the input's name, so that two inputs may read topics of
one name or have equal identities. The ledger keeps the clusters in one text: the id of a single source's cluster, or
``input=id`` of each input, sorted and joined by ``, ``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from epochline.declare.names import ledger_prefix
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
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
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
    merged: list[OffsetRange] = []
    for span in sorted(ranges, key=lambda span: span.start):
        if merged and span.start <= merged[-1].until:
            merged[-1] = OffsetRange(start=merged[-1].start, until=max(merged[-1].until, span.until))
        else:
            merged.append(span)
    return merged


def left_out(of: OffsetRange, taken: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of a range that none of the others has, sorted."""
    left, start = [], of.start
    for span in joined(taken):
        if start < min(span.start, of.until):
            left.append(OffsetRange(start=start, until=min(span.start, of.until)))
        start = max(start, span.until)
    return [*left, OffsetRange(start=start, until=of.until)] if start < of.until else left


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """The range that one epoch reads from one partition; ``records`` is how many the sealed attempt read of it."""

    tp: TopicPartition
    range: OffsetRange
    leader_epoch: int | None = None
    records: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.tp}{self.range}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How far a partition is committed: ``[origin, next_offset)``, last by epoch ``epoch_id`` if there was one."""

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
    for head in sorted(heads, key=lambda head: head.tp):
        held = topics.setdefault((head.tp.topic, head.tp.topic_id), {"origin": {}, "next": {}, "leader_epoch": {}})
        partition = str(head.tp.partition)
        held["origin"][partition] = head.origin
        held["next"][partition] = head.next_offset
        if head.leader_epoch is not None:
            held["leader_epoch"][partition] = head.leader_epoch
    return [{"topic": topic, "topic_id": topic_id, **held} for (topic, topic_id), held in topics.items()]


def stored_heads(stored: Iterable[Mapping[str, Any]]) -> list[Head]:
    """Parse the result of `stored_reached`; raises ``ValueError`` for others. Origins that are missing are 0."""
    origins, leader_epochs = origins_of(stored), _held(stored, "leader_epoch")
    return [
        Head(tp=tp, origin=origins.get(tp, 0), next_offset=offset, leader_epoch=leader_epochs.get(tp))
        for tp, offset in reached_of(stored).items()
    ]


def reached_of(stored: Iterable[Mapping[str, Any]]) -> Reached:
    """Next offsets in the result of `stored_reached`; raises ``ValueError`` for others."""
    return _held(stored, "next", always=True)


def origins_of(stored: Iterable[Mapping[str, Any]]) -> Reached:
    """Origins in the result of `stored_reached`, if it has them; raises ``ValueError`` for others."""
    return _held(stored, "origin")


def cut_reached(stored: Iterable[Mapping[str, Any]], cuts: Reached) -> list[dict[str, Any]]:
    """The result of `stored_reached`, with no partition beyond its cut; raises ``ValueError`` for others."""
    return stored_reached(
        replace(head, origin=min(head.origin, until), next_offset=min(head.next_offset, until))
        for head in stored_heads(stored)
        for until in [cuts.get(head.tp, head.next_offset)]
    )


def _held(stored: Iterable[Mapping[str, Any]], what: str, *, always: bool = False) -> Reached:
    try:
        return {
            TopicPartition(topic=entry["topic"], topic_id=entry["topic_id"], partition=int(partition)): int(offset)
            for entry in stored
            for partition, offset in (entry[what] if always else entry.get(what, {})).items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{stored!r} names no offsets of partitions") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the pipeline begins in a partition, recorded once, before the first read (INV-1)."""

    tp: TopicPartition
    offset: int
    chosen_by: str
    leader_epoch: int | None = None
    same_log_until: int | None = None
    """Offset up to which an adopted log is the log that earlier generations read; None if nothing was cut off."""


def in_ledger(source: str, tp: TopicPartition) -> TopicPartition:
    """A partition of a source, as the ledger names it."""
    prefix = ledger_prefix(source)
    return replace(tp, topic=f"{prefix}{tp.topic}", topic_id=f"{prefix}{tp.topic_id}")


def in_source(source: str, tp: TopicPartition) -> TopicPartition:
    """A partition in the ledger, as its source names it."""
    prefix = ledger_prefix(source)
    return replace(tp, topic=tp.topic.removeprefix(prefix), topic_id=tp.topic_id.removeprefix(prefix))


def belongs_to(source: str, topic: str) -> bool:
    """Whether a topic in the ledger is of this source; every topic is of a single one, which has no name."""
    return topic.startswith(ledger_prefix(source))


def cluster_ids(text: str | None) -> dict[str, str]:
    """The id of each input's cluster; a single source has the name ``""``."""
    named = [item.partition("=") for item in text.split(", ")] if text else []
    return {name if equals else "": cluster_id if equals else name for name, equals, cluster_id in named}


def cluster_text(ids: Mapping[str, str | None]) -> str | None:
    """The inverse of `cluster_ids`. Inputs without a cluster are left out; None if none is left."""
    present = sorted((name, cluster_id) for name, cluster_id in ids.items() if cluster_id is not None)
    return ", ".join(f"{name}={cluster_id}" if name else cluster_id for name, cluster_id in present) or None


def moved_clusters(known: str | None, now: str | None) -> dict[str, tuple[str, str]]:
    """The inputs whose cluster is another one than the known one: its known id and its id now."""
    before, after = cluster_ids(known), cluster_ids(now)
    return {name: (before[name], after[name]) for name in before.keys() & after.keys() if before[name] != after[name]}


def with_clusters(known: str | None, now: str | None) -> str | None:
    """The known clusters with those of inputs that were not known."""
    return cluster_text({**cluster_ids(now), **cluster_ids(known)})
