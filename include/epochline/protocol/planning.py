"""What Kafka shows of partitions and logs, and the ranges of the next epoch, shared among tasks. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from epochline.protocol.epoch import Epoch, Interval
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, Reached, TopicPartition
from epochline.protocol.quantities import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has written to a partition and not ended; None for what its coordinator does not know."""

    start_offset: int
    producer_id: int
    last_write_at: datetime | None = None
    transactional_id: str | None = None
    begun_at: datetime | None = None
    timeout: timedelta | None = None

    @property
    def hangs(self) -> bool:
        """Whether no coordinator knows it, so that it will not end by itself."""
        return self.timeout is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """Offsets of one partition; a ``high_watermark`` beyond ``last_stable`` means that a transaction is open."""

    tp: TopicPartition
    log_start: int
    last_stable: int
    high_watermark: int
    leader_epoch: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    """Transactions that hold the last stable offset back, as far as the broker names them, the oldest first."""
    waits_for: str | None = None
    """What holds the end back, as a source of the user's own says it. The end may then be lower than before."""

    @property
    def known_end(self) -> int:
        """The end of what was drawn or written and can be read, now or when what holds it back has ended."""
        return self.last_stable if self.waits_for is None else self.high_watermark

    def holds(self, planned: OffsetRange) -> bool:
        """Whether a range that a plan has used before can still be read."""
        return self.log_start <= planned.start and planned.until <= self.known_end


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The source at one moment: its cluster, its partitions, and the topics with expected gaps."""

    cluster_id: str | None
    partitions: Sequence[PartitionView]
    invisible_allowed: frozenset[str] = frozenset()
    """Topics in which offsets without a record are not explained: compacted, or declared so (INV-9)."""
    compacted: frozenset[str] = frozenset()
    """Topics of which Kafka may have deleted, or may yet delete, records within the log."""


def share_limit(
    backlog: Mapping[TopicPartition, int], limit: int, order: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Share a record limit in proportion to the backlog; each partition gets an offset if the limit allows it."""
    total = sum(backlog.values())
    if limit >= total:
        return dict(backlog)
    if limit <= len(backlog):
        return dict.fromkeys(order[:limit], 1)
    # One offset for each first; the rest by largest remainder, which never exceeds what is left of a backlog.
    spare, rest = limit - len(backlog), total - len(backlog)
    shares, remainders = {}, {}
    for tp, waiting in backlog.items():
        exact = (waiting - 1) * spare
        shares[tp] = 1 + exact // rest
        remainders[tp] = exact % rest
    position = {tp: index for index, tp in enumerate(order)}
    missing = limit - sum(shares.values())
    for tp in sorted(remainders, key=lambda tp: (-remainders[tp], position[tp]))[:missing]:
        shares[tp] += 1
    return shares


def left_unread(
    heads: Sequence[Head], partitions: Sequence[PartitionView], ranges: Sequence[PlannedRange]
) -> frozenset[TopicPartition]:
    """The partitions that have records beyond an epoch's ranges. Records of an open transaction count as well."""
    ends = {view.tp: view.high_watermark for view in partitions}
    reached = {head.tp: head.next_offset for head in heads} | {planned.tp: planned.range.until for planned in ranges}
    return frozenset(tp for tp, position in reached.items() if position < ends.get(tp, 0))


def next_boundary(heads: Sequence[Head], shown: Iterable[Reached]) -> Reached | None:
    """The nearest position that a sink shows and some head has not reached, where an epoch must end; or None."""
    ahead = [reached for reached in shown if any(head.next_offset < reached.get(head.tp, 0) for head in heads)]
    return min(ahead, key=lambda reached: sum(reached.values()), default=None)


def next_ranges(
    heads: Sequence[Head],
    partitions: Sequence[PartitionView],
    *,
    limit: int | None = None,
    bounds: Mapping[TopicPartition, int] | None = None,
) -> list[PlannedRange]:
    """The ranges of the next epoch, sorted: from each head to the last stable offset, within limit and bounds."""
    views = {view.tp: view for view in partitions}
    ends: dict[TopicPartition, int] = {}
    for head in heads:
        view = views.get(head.tp)
        if view is None:
            continue
        end = view.last_stable if bounds is None else min(view.last_stable, bounds.get(head.tp, 0))
        if end > head.next_offset:
            ends[head.tp] = end
    start = {head.tp: head.next_offset for head in heads}
    if limit is not None and ends:
        # Epoch ids grow with time: the lowest waited longest, a partition that was never read (None) longest of all.
        waiting = sorted((head for head in heads if head.tp in ends), key=lambda head: (head.epoch_id or 0, head.tp))
        shares = share_limit({tp: end - start[tp] for tp, end in ends.items()}, limit, [head.tp for head in waiting])
        ends = {tp: start[tp] + share for tp, share in shares.items()}
    return [
        PlannedRange(tp=tp, range=OffsetRange(start=start[tp], until=end), leader_epoch=views[tp].leader_epoch)
        for tp, end in sorted(ends.items())
    ]


def shared(ranges: Sequence[PlannedRange], tasks: int) -> tuple[tuple[PlannedRange, ...], ...]:
    """Cut ranges into shares of equal numbers of offsets, in order, at most one per task and none of them empty."""
    left = sum(len(planned.range) for planned in ranges)
    shares: list[tuple[PlannedRange, ...]] = []
    rest = list(reversed(ranges))
    for tasks_left in range(min(tasks, left), 0, -1):
        wanted = -(-left // tasks_left)
        left -= wanted
        share: list[PlannedRange] = []
        while wanted:
            planned = rest.pop()
            cut = min(planned.range.start + wanted, planned.range.until)
            share.append(replace(planned, range=OffsetRange(start=planned.range.start, until=cut)))
            if cut < planned.range.until:
                rest.append(replace(planned, range=OffsetRange(start=cut, until=planned.range.until)))
            wanted -= cut - planned.range.start
        shares.append(tuple(share))
    return tuple(shares)


_LEAST_SHARE = 100
_MOST_CHANGE = 4
_TICK = timedelta(microseconds=1)


def adapted_limit(most: int, target: timedelta, newest: Epoch | None) -> int:
    """The record limit with which the next epoch takes about ``target`` from its plan to its commit.

    The newest epoch's records are multiplied by ``target`` / (the time it took), within a factor of 4. An epoch that
    read less than its limit in time, or needed several attempts, says nothing. The result is at least a hundredth of
    ``most``, the declared limit: a target below an epoch's fixed cost would otherwise end at one record per epoch.
    """
    if newest is None or newest.committed_at is None:
        return most
    before = newest.record_limit or most
    took = newest.committed_at - newest.planned_at
    limit: float = before
    if newest.attempt == 1 and (took > target or newest.counts.read >= before):
        limit = newest.counts.read * min(_MOST_CHANGE, max(1 / _MOST_CHANGE, target / max(took, _TICK)))
    return min(most, max(1, most // _LEAST_SHARE, int(limit)))


def missed_interval(interval: timedelta, newest: Epoch | None) -> str | None:
    """Say that the newest committed epoch took longer than the interval between epochs; None if it did not."""
    if newest is None or newest.committed_at is None:
        return None
    took = newest.committed_at - newest.planned_at
    if took <= interval:
        return None
    return (
        f"the interval of {duration(interval.total_seconds())} was not kept: {newest} took"
        f" {duration(took.total_seconds())} from its plan to its commit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The settings of a topic by which Kafka deletes records; -1 means that there is no limit."""

    cleanup_policy: str
    milliseconds: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The offsets between which a ``read_committed`` consumer finds the records of a partition."""

    tp: TopicPartition
    log_start: int
    last_stable: int
    retention: Retention | None = None
    """None if Kafka was not asked, or may not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLog:
    """The positions ``[start, end)`` that a partition holds now, for audits; ``identity`` tells which log it is."""

    identity: str
    start: int
    end: int
    compacted: bool = False


def log_ends_of(view: SourceView) -> Sequence[LogEnd]:
    """The ends of the logs that a plan saw."""
    return [LogEnd(tp=log.tp, log_start=log.log_start, last_stable=log.known_end) for log in view.partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalOffsets:
    """Kafka's offsets of ``[t0, t1)``: per partition ``o(t0)`` and ``o(t1)``, None if no record is that late.

    ``o(t)`` is the first offset with a timestamp at or after ``t``. A run commits ``[head, o(t1))``: ranges form a
    chain (INV-1).
    """

    interval: Interval
    starts: Mapping[TopicPartition, int | None]
    untils: Mapping[TopicPartition, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfInterval:
    """One partition of an interval, ``start`` to ``until``. The three ranges do not overlap; an empty one is None."""

    tp: TopicPartition
    start: int
    until: int
    before_origin: OffsetRange | None
    """Part of the interval before the origin: no run commits it."""
    committed: OffsetRange | None
    """Part of the interval before the head: committed already."""
    early: OffsetRange | None
    """Offsets between the head and the interval, which must be committed first."""


def parts_of(
    heads: Sequence[Head], partitions: Sequence[PartitionView], offsets: IntervalOffsets
) -> list[PartOfInterval]:
    """Split the interval for every partition that has a head and that Kafka shows; sorted by partition."""
    views = {view.tp: view for view in partitions}
    parts = []
    for head in sorted(heads, key=lambda head: head.tp):
        view = views.get(head.tp)
        if view is None:
            continue
        until = _at_most(offsets.untils.get(head.tp), view.last_stable)
        start = min(_at_most(offsets.starts.get(head.tp), view.last_stable), until)
        parts.append(
            PartOfInterval(
                tp=head.tp,
                start=start,
                until=until,
                before_origin=_range(start, min(until, head.origin)),
                committed=_range(max(start, head.origin), min(until, head.next_offset)),
                early=_range(head.next_offset, start),
            )
        )
    return parts


def _at_most(offset: int | None, last_stable: int) -> int:
    return last_stable if offset is None else min(offset, last_stable)


def _range(start: int, until: int) -> OffsetRange | None:
    return OffsetRange(start=start, until=until) if start < until else None
