"""Take-over: records that sinks showed before the ledger went back in time are read into the tables only.

An operator accepts a ledger from a backup, with the offsets that its sinks show already (`epochline.operations`). Until
the heads have reached those offsets, each epoch ends at a sink's end and commits nothing to that sink.
"""

from collections.abc import Mapping, Sequence

from epochline.errors import HeadMovedError
from epochline.ports import Accepted, Transaction
from epochline.protocol.epoch import Epoch, EpochKind
from epochline.protocol.offsets import Head, PlannedRange, Reached, TopicPartition, origins_of, reached_of, stored_heads

_READING = frozenset({EpochKind.REGULAR, EpochKind.BACKFILL, EpochKind.EXTEND_BACK})
"""The kinds of epoch whose ranges a sink may show already."""


def shown_until(tx: Transaction, pipeline: str) -> Sequence[Reached]:
    """The offsets up to which sinks show every record, although the ledger lost the epochs."""
    return [reached_of(receipt.shown.reached) for receipt in tx.receipts.accepted(pipeline) if receipt.shown.reached]


def shown_back_to(accepted: Sequence[Accepted], heads: Sequence[Head]) -> Mapping[TopicPartition, int]:
    """The partitions of which a sink shows offsets before the origin, each with the lowest offset that it shows."""
    shown_from: dict[TopicPartition, int] = {}
    for receipt in accepted:
        reached, origins = reached_of(receipt.shown.reached or ()), origins_of(receipt.shown.reached or ())
        for head in heads:
            begins = origins.get(head.tp, head.origin)
            if begins < head.origin <= reached.get(head.tp, 0):
                shown_from[head.tp] = max(begins, shown_from.get(head.tp, 0))
    return shown_from


def shown_ahead(accepted: Sequence[Accepted], heads: Sequence[Head]) -> list[tuple[str, list[Head]]]:
    """Each sink that shows offsets which no head has reached, with the places up to which it does."""
    next_offsets = {head.tp: head.next_offset for head in heads}
    ahead = []
    for receipt in accepted:
        places = stored_heads(receipt.shown.reached or ())
        unread = [place for place in places if place.next_offset > next_offsets.get(place.tp, 0)]
        if unread:
            ahead.append((receipt.shown_by, unread))
    return ahead


def shown_before(tx: Transaction, epoch: Epoch, ranges: Sequence[PlannedRange]) -> frozenset[str]:
    """The sinks that showed an epoch's offsets before the ledger went back; `HeadMovedError` for a part of them."""
    if epoch.kind not in _READING or not ranges:
        return frozenset()
    accepted = tx.receipts.accepted(epoch.pipeline)
    part = crossed(epoch, accepted, ranges)
    if part is not None:
        raise HeadMovedError(
            f"{epoch}: {part}. Nothing was changed. Abort the epoch, then clear its run from plan_epoch.",
            f"abort {epoch.pipeline} {epoch.epoch_id} --reason …",
        )
    return frozenset(receipt.shown_by for receipt in accepted if all(_parts_shown(epoch, receipt, ranges)))


def crossed(epoch: Epoch, accepted: Sequence[Accepted], ranges: Sequence[PlannedRange]) -> str | None:
    """Which sink showed a part of an epoch's offsets before the ledger went back in time; None if none did."""
    for receipt in accepted if epoch.kind in _READING else ():
        shown = _parts_shown(epoch, receipt, ranges)
        if not all(shown) and any(part is not False for part in shown):
            first = next(planned for planned, part in zip(ranges, shown, strict=True) if part is not False)
            return f"{receipt.shown_by} showed a part of it before the ledger went back in time, from {first}"
    return None


def _parts_shown(epoch: Epoch, receipt: Accepted, ranges: Sequence[PlannedRange]) -> list[bool | None]:
    """Whether a sink showed each range: all of it, nothing, or (None) a part."""
    reached, origins = reached_of(receipt.shown.reached or ()), origins_of(receipt.shown.reached or ())
    parts: list[bool | None] = []
    for planned in ranges:
        until = reached.get(planned.tp, 0)
        # A forward epoch reads nothing before the lost ledger's origin.
        begins = origins.get(planned.tp, 0) if epoch.kind is EpochKind.EXTEND_BACK else 0
        if planned.range.start >= until or planned.range.until <= begins:
            parts.append(False)
        else:
            parts.append(True if begins <= planned.range.start and planned.range.until <= until else None)
    return parts
