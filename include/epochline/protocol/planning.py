"""Which ranges come next. Pure: given heads and what Kafka said, it computes and never asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, Reached, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has written to a partition and not ended, as far as the broker tells.

    ``transactional_id``, ``begun_at`` and ``timeout`` are None where its coordinator does not know it (any more) or may
    not be asked; then nobody but an operator will end it.
    """

    start_offset: int
    producer_id: int
    last_write_at: datetime | None = None
    transactional_id: str | None = None
    begun_at: datetime | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What Kafka says of one partition, at the isolation level ``read_committed``.

    ``last_stable`` is the last stable offset: no range goes beyond it, or an open transaction's records would be
    skipped for ever (trap 13). ``high_watermark`` beyond it means that a transaction is open.
    """

    tp: TopicPartition
    log_start: int
    last_stable: int
    high_watermark: int
    leader_epoch: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    """Where one holds the last stable offset back: those that the broker names, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One look at the source: its cluster, its partitions, and where offsets without a record are expected."""

    cluster_id: str | None
    partitions: Sequence[PartitionView]
    invisible_allowed: frozenset[str] = frozenset()
    """Topics that are compacted or have (had) transactional producers (INV-9)."""


def share_limit(
    backlog: Mapping[TopicPartition, int], limit: int, order: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Share a record limit between partitions in proportion to their backlog.

    The shares add up to ``min(limit, total backlog)``, none exceeds its backlog, and with a limit of at least the
    number of lagging partitions each gets one offset or more. With a smaller limit the first ``limit`` partitions
    of ``order`` get one each.

    Args:
        backlog: offsets waiting, > 0, per partition.
        limit: most offsets to read, > 0.
        order: every partition of ``backlog``, the one that waited longest first.
    """
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
    position = {tp: i for i, tp in enumerate(order)}
    missing = limit - sum(shares.values())
    for tp in sorted(remainders, key=lambda t: (-remainders[t], position[t]))[:missing]:
        shares[tp] += 1
    return shares


def next_boundary(heads: Sequence[Head], shown: Iterable[Reached]) -> Reached | None:
    """The nearest place up to which a sink shows every record, and which some head has not reached; None for none.

    An epoch ends there, so that a sink has shown all of it or nothing.
    """
    ahead = [one for one in shown if any(head.next_offset < one.get(head.tp, 0) for head in heads)]
    return min(ahead, key=lambda one: sum(one.values()), default=None)


def next_ranges(
    heads: Sequence[Head],
    partitions: Sequence[PartitionView],
    *,
    limit: int | None = None,
    bounds: Mapping[TopicPartition, int] | None = None,
) -> list[PlannedRange]:
    """The ranges of the next epoch: from each head to the last stable offset, within the limit.

    Args:
        heads: every partition's head, those just given an origin included.
        partitions: what Kafka has now.
        limit: most offsets in the epoch; None for no limit.
        bounds: where a backfill run's interval ends, per partition; a range never goes beyond it.

    Returns:
        Ranges sorted by topic and partition; empty where there is nothing to read.
    """
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
        # An epoch id is a time: the lowest waited longest, a partition that was never read (None) longest of all.
        waiting = sorted((h for h in heads if h.tp in ends), key=lambda h: (h.epoch_id or 0, h.tp))
        shares = share_limit({tp: end - start[tp] for tp, end in ends.items()}, limit, [head.tp for head in waiting])
        ends = {tp: start[tp] + share for tp, share in shares.items()}
    return [
        PlannedRange(tp=tp, range=OffsetRange(start=start[tp], until=end), leader_epoch=views[tp].leader_epoch)
        for tp, end in sorted(ends.items())
    ]
