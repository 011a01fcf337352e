"""Which ranges come next, and whether the log is still the one that the heads belong to.

Pure: given heads and what Kafka said, it computes and never asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochline.errors import DataLossError
from epochline.offsets import Head, OffsetRange, PlannedRange, TopicPartition


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """One look at the source: its cluster, its partitions, and where offsets without a record are expected."""

    cluster_id: str | None
    partitions: Sequence[PartitionView]
    invisible_allowed: frozenset[str] = frozenset()
    """Topics that are compacted or have (had) transactional producers (INV-9)."""


def check_same_log(pipeline: str, heads: Sequence[Head], partitions: Sequence[PartitionView]) -> None:
    """Stop where what follows the heads is no longer the log they were read from.

    Raises:
        DataLossError: a topic was made again (trap 10), partitions are gone, retention passed a head (trap 9), or
            the log ends before a head (trap 11). The message says which, how many offsets, and what can be done.
    """
    views = {(view.tp.topic, view.tp.partition): view for view in partitions}
    for head in heads:
        view = views.get((head.tp.topic, head.tp.partition))
        if view is None:
            raise DataLossError(
                f"{pipeline}: {head.tp} is committed up to offset {head.next_offset}, but Kafka no longer has the"
                " partition or its topic. Nothing was planned. Bring the topic back, or take it out of the"
                " declaration if it is meant to be gone."
            )
        if view.tp.topic_id != head.tp.topic_id:
            raise DataLossError(
                f"{pipeline}: topic {head.tp.topic} was deleted and made again (its id was {head.tp.topic_id}, is now"
                f" {view.tp.topic_id}); offset {head.next_offset} of partition {head.tp.partition} now means another"
                " record. Nothing was planned. Bring the old topic back, or say"
                f" `epochline adopt-topic {pipeline} {head.tp.topic}` to go on with the new one."
            )
        if head.next_offset < view.log_start:
            raise DataLossError(
                f"{pipeline}: retention passed the head of {head.tp}: offsets [{head.next_offset}, {view.log_start}),"
                f" {view.log_start - head.next_offset} of them, are gone before they were read. Nothing was planned"
                f" and no offset was reset. `epochline declare-loss {pipeline}` writes the loss down and goes on"
                " behind it."
            )
        if head.next_offset > view.high_watermark:
            raise DataLossError(
                f"{pipeline}: {head.tp} is committed up to offset {head.next_offset}, but its log ends at"
                f" {view.high_watermark}: {head.next_offset - view.high_watermark} offsets that were read have been"
                " truncated. Nothing was planned. Find out which broker lost its log;"
                f" `epochline adopt-topic {pipeline} {head.tp.topic}` goes on with the log as it is."
            )


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
