"""Tell: which epochs others are told that a sink shows, each until it is known that they heard of it.

A task that is lost after the ledger's commit tells nobody. So an epoch is told again by whoever comes next, until what
was told is found where it was told to: it may come twice, never not at all. A consumer's cursor makes it once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from epochline.epoch import Run
from epochline.ports import Ledger, ToldReceipt

log = logging.getLogger(__name__)

Heard = Callable[[Sequence[ToldReceipt]], Sequence[ToldReceipt]]
"""Which of these receipts have arrived where they are told to."""


def tell(ledger: Ledger, pipeline: str, run: Run, *, heard: Heard) -> Sequence[ToldReceipt]:
    """What this run's task has to tell: shown epochs by sink, the oldest first, whoever committed them.

    Called again it gives the same, until what was told has arrived.

    Args:
        ledger: where the receipts are.
        pipeline: whose.
        run: whose task tells them.
        heard: asked which ones have arrived; no transaction is open meanwhile.

    Raises:
        LedgerUnavailableError: nothing is noted, or all is; a repeat helps.
    """
    with ledger.transaction() as tx:
        untold = tx.receipts.untold(pipeline)
    known = heard(untold) if untold else ()
    with ledger.transaction() as tx:
        tx.receipts.heard(pipeline, known)
        untold = tx.receipts.untold(pipeline)
        tx.receipts.tell(pipeline, untold, run)
    if untold:
        log.info(
            "epochs.told pipeline=%s receipts=%d first=%d last=%d heard=%d",
            pipeline, len(untold), untold[0].epoch_id, untold[-1].epoch_id, len(known),
        )  # fmt: skip
    return untold
