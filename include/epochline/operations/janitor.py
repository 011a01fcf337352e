"""The janitor: what a teardown that never ran left behind (trap 8). Repeatable, and safe beside running epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from epochline.coordinator.abort import abort_in
from epochline.coordinator.discard import discard, sweep
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState, Run

log = logging.getLogger(__name__)

STALE_AFTER = timedelta(hours=1)
"""How long after its lease ended nobody is expected to come back for a planned epoch: longer than tasks are retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What the janitor found in one database."""

    swept: int
    """Attempts whose staging nobody needed, and which is gone."""
    ended: Sequence[str]
    """Epochs that were planned, left alone and are aborted now."""
    unexplained: Sequence[str]
    """Tables in ``epochline_staging`` that no attempt explains. Reported and left alone: somebody made them."""

    def lines(self) -> list[str]:
        """The same for people."""
        told = [f"{self.swept} left-over staging{'' if self.swept == 1 else 's'} dropped"]
        told += [f"{epoch} was planned and left alone; it is aborted, its range is free" for epoch in self.ended]
        told += [
            f"epochline_staging.{table} belongs to no attempt that the ledger knows; it was left as it is"
            for table in self.unexplained
        ]
        return told


def tidy(ledger: Ledger, who: Run, *, stale_after: timedelta = STALE_AFTER) -> Tidied:
    """Drop staging that nobody needs, end epochs that nobody stages, and report tables that nobody explains.

    Every epoch is judged by a fresh look under its row lock. A pre-committed one is left for the next run, which
    commits it (INV-6).

    Args:
        ledger: of one database; all its pipelines are looked at.
        who: kept with what was ended.
        stale_after: how long after the end of its lease a planned epoch is ended.
    """
    ended = []
    with ledger.transaction() as tx:
        stale, pipelines = tx.epochs.stale(stale_after), tx.epochs.pipelines()
    for seen in stale:
        with ledger.transaction() as tx:
            tx.epochs.lock_pipeline(seen.pipeline)
            epoch = tx.epochs.lock(seen.pipeline, seen.epoch_id)
            if epoch.state is not EpochState.PLANNED or not epoch.lease_expired:
                continue
            attempt = abort_in(tx, epoch, f"its lease ended more than {stale_after} ago; ended by {who}")
        if attempt is not None:
            discard(ledger, attempt)
        log.info("epoch.ended pipeline=%s epoch=%d by=janitor", epoch.pipeline, epoch.epoch_id)
        ended.append(str(epoch))
    swept = sum(sweep(ledger, pipeline) for pipeline in pipelines)
    with ledger.transaction() as tx:
        unexplained = tuple(tx.attempts.unexplained())
    for table in unexplained:
        log.warning("staging.unexplained table=epochline_staging.%s", table)
    return Tidied(swept=swept, ended=tuple(ended), unexplained=unexplained)
