"""Announce published epochs until Airflow has recorded them.

A task that dies after the ledger's commit announces nothing. So later tasks announce an epoch again until Airflow has
its event: the event may come twice but is never missing. A consumer's cursor removes the duplicates.
"""

import logging
from collections.abc import Callable, Sequence

from epochline.ports import AnnouncedReceipt, Ledger
from epochline.protocol.epoch import Run

log = logging.getLogger(__name__)

Acknowledged = Callable[[Sequence[AnnouncedReceipt]], Sequence[AnnouncedReceipt]]
"""Returns those of the receipts that Airflow has recorded."""


def announce(ledger: Ledger, pipeline: str, run: Run, *, acknowledged: Acknowledged) -> Sequence[AnnouncedReceipt]:
    """Return the receipts that this run's task must announce, oldest first, including other runs' epochs.

    A repeat returns the same receipts until Airflow has recorded them, also after a `LedgerUnavailableError`.
    ``acknowledged`` is called while no transaction is open.
    """
    with ledger.transaction() as tx:
        unannounced = tx.receipts.unannounced(pipeline)
    confirmed = acknowledged(unannounced) if unannounced else ()
    with ledger.transaction() as tx:
        tx.receipts.acknowledge(pipeline, confirmed)
        unannounced = tx.receipts.unannounced(pipeline)
        tx.receipts.announce(pipeline, unannounced, run)
    if unannounced:
        log.info(
            "epochs.announced pipeline=%s receipts=%d first=%d last=%d acknowledged=%d",
            pipeline, len(unannounced), unannounced[0].epoch_id, unannounced[-1].epoch_id, len(confirmed),
        )  # fmt: skip
    return unannounced
