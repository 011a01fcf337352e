"""Tell: which epochs others are told that a sink shows, each until it is known that they heard of it.

A task that is lost after the ledger's commit tells nobody. So an epoch is told again by whoever comes next, until what
was told is found where it was told to: it may come twice, never not at all. A consumer's cursor makes it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from epochline.ports import AnnouncedReceipt, Ledger
from epochline.protocol.epoch import Run

log = logging.getLogger(__name__)

Acknowledged = Callable[[Sequence[AnnouncedReceipt]], Sequence[AnnouncedReceipt]]
"""Which of these receipts have arrived where they are told to."""


def announce(ledger: Ledger, pipeline: str, run: Run, *, acknowledged: Acknowledged) -> Sequence[AnnouncedReceipt]:
    """What this run's task has to tell: shown epochs by sink, the oldest first, whoever committed them.

    Called again it gives the same, until what was told has arrived.

    Args:
        ledger: where the receipts are.
        pipeline: whose.
        run: whose task tells them.
        acknowledged: asked which ones have arrived; no transaction is open meanwhile.

    Raises:
        LedgerUnavailableError: nothing is noted, or all is; a repeat helps.
    """
    with ledger.transaction() as tx:
        unannounced = tx.receipts.unannounced(pipeline)
    known = acknowledged(unannounced) if unannounced else ()
    with ledger.transaction() as tx:
        tx.receipts.acknowledge(pipeline, known)
        unannounced = tx.receipts.unannounced(pipeline)
        tx.receipts.announce(pipeline, unannounced, run)
    if unannounced:
        log.info(
            "epochs.told pipeline=%s receipts=%d first=%d last=%d heard=%d",
            pipeline, len(unannounced), unannounced[0].epoch_id, unannounced[-1].epoch_id, len(known),
        )  # fmt: skip
    return unannounced
