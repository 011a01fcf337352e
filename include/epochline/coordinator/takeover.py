"""Take-over: what sinks showed before the ledger went back in time is read into the tables alone.

An operator accepts a ledger from a backup with the offsets that its sinks show already (`epochline.operations`). Until
the heads are there again, each epoch ends where a sink's own end was, and commits nothing to that sink.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochline.epoch import Epoch, EpochKind
from epochline.errors import HeadMovedError
from epochline.offsets import PlannedRange, Reached, reached_of
from epochline.ports import Transaction

_ADVANCING = frozenset({EpochKind.REGULAR, EpochKind.BACKFILL})
"""The kinds whose ranges lie between a head and what is shown; what is read from elsewhere was shown by nobody."""


def shown_until(tx: Transaction, pipeline: str) -> Sequence[Reached]:
    """The offsets up to which sinks show every record, although the ledger lost the epochs."""
    return [reached_of(one.shown.reached) for one in tx.receipts.accepted(pipeline) if one.shown.reached]


def shown_before(tx: Transaction, epoch: Epoch, ranges: Sequence[PlannedRange]) -> frozenset[str]:
    """The sinks that showed an epoch's offsets before the ledger went back in time.

    Raises:
        HeadMovedError: a sink has shown a part of them.
    """
    if epoch.kind not in _ADVANCING or not ranges:
        return frozenset()
    found = set()
    for one in tx.receipts.accepted(epoch.pipeline):
        reached = reached_of(one.shown.reached or ())
        if all(_within(planned, reached) for planned in ranges):
            found.add(one.shown_by)
    part = crossed(epoch, tx, ranges)
    if part is not None:
        raise HeadMovedError(
            f"{epoch}: {part}. Nothing was changed. Abort the epoch, then clear its run from plan_epoch."
        )
    return frozenset(found)


def crossed(epoch: Epoch, tx: Transaction, ranges: Sequence[PlannedRange]) -> str | None:
    """Which sink showed a part of an epoch's offsets before the ledger went back in time; None where none did."""
    for one in tx.receipts.accepted(epoch.pipeline) if epoch.kind in _ADVANCING else ():
        reached = reached_of(one.shown.reached or ())
        shown = [planned for planned in ranges if planned.range.start < reached.get(planned.tp, 0)]
        if shown and not all(_within(planned, reached) for planned in ranges):
            return f"{one.shown_by} showed a part of it before the ledger went back in time, from {shown[0]}"
    return None


def _within(planned: PlannedRange, reached: Reached) -> bool:
    return planned.range.until <= reached.get(planned.tp, 0)
