"""Clean up after runs whose teardown never ran. Repeatable, and safe while epochs run."""

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
"""Time after the end of a lease until its epoch counts as abandoned: longer than Airflow retries tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What the janitor found in one database."""

    swept: int
    """Number of attempts whose unneeded staging was dropped."""
    ended: Sequence[str]
    """Planned epochs that were abandoned and are aborted now."""
    unexplained: Sequence[str]
    """Tables in ``epochline_staging`` that belong to no attempt. They are reported and left as they are."""

    def lines(self) -> list[str]:
        """What was found, as lines for people."""
        lines = [f"{self.swept} left-over staging{'' if self.swept == 1 else 's'} dropped"]
        lines += [f"{epoch} was planned and left alone; it is aborted, its range is free" for epoch in self.ended]
        lines += [
            f"epochline_staging.{table} belongs to no attempt that the ledger knows; it was left as it is"
            for table in self.unexplained
        ]
        return lines


def tidy(ledger: Ledger, run: Run, *, stale_after: timedelta = STALE_AFTER) -> Tidied:
    """Drop unneeded staging, end abandoned epochs, and report unexplained tables.

    Every epoch is checked again under its row lock. The next run commits a pre-committed epoch (INV-6).

    Args:
        ledger: of one database; all its pipelines are cleaned up.
        run: kept as the reason with the ended epochs.
        stale_after: time after the end of its lease until a planned epoch is ended.
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
            attempt = abort_in(tx, epoch, f"its lease ended more than {stale_after} ago; ended by {run}")
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
