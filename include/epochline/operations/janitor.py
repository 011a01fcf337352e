"""What a schedule does for all pipelines: clean up after lost runs, and ask Kafka where logs end. Repeatable."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from epochline.coordinator.abort import abort_in
from epochline.coordinator.discard import discard, sweep
from epochline.coordinator.intent import LEASE
from epochline.declare.pipeline import Pipeline
from epochline.errors import LockTimeoutError, StatementTimeoutError
from epochline.ports import Ledger, OffsetSource
from epochline.protocol.epoch import EpochState, Run
from epochline.protocol.offsets import in_ledger
from epochline.protocol.quantities import counted

log = logging.getLogger(__name__)

STALE_AFTER = timedelta(hours=1)
"""Time after the end of a lease until its epoch counts as abandoned: longer than Airflow retries tasks."""

_LOOK_AGAIN_SECONDS = LEASE.total_seconds() / 2
"""A living attempt renews its lease twice in this time, also where the clock of the database has jumped."""

_CLOCKS_DIFFER = timedelta(minutes=5)
"""Where the clocks of this machine and of the database differ by more, one of them is wrong, and no age counts."""

_AT_ONCE = 100
"""A transaction deletes this many records, images, keys or attempts: milliseconds."""

_KINDS = {
    "quarantined": "quarantined record",
    "before_images": "before-image",
    "deleted_keys": "deleted key",
    "ledger": "attempt's detail",
}
"""What a retention deletes, by its field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What the janitor found in one database."""

    swept: int
    """Number of attempts whose unneeded staging was dropped."""
    ended: Sequence[str]
    """Planned epochs that were abandoned and are aborted now."""
    unexplained: Sequence[str]
    """Tables in ``epochline_staging`` that belong to no attempt. They are reported and left as they are."""
    expired: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By pipeline and kind, how much history was older than its retention and is deleted."""
    clocks: timedelta | None = None
    """How far the database's clock is from this machine's, where that kept history from being deleted by its age."""

    def lines(self) -> list[str]:
        """What was found, as lines for people."""
        lines = [f"{counted(self.swept, 'left-over staging')} dropped"]
        lines += [f"{epoch} was planned and left alone; it is aborted, its range is free" for epoch in self.ended]
        lines += [
            f"epochline_staging.{table} belongs to no attempt that the ledger knows; it was left as it is"
            for table in self.unexplained
        ]
        if self.clocks is not None:
            lines.append(
                "nothing was deleted by its age: the clock of the database is"
                f" {self.clocks.total_seconds():+.0f} s from this machine's, so one of them is wrong. Set it; the next"
                " janitor goes on"
            )
        for pipeline, kinds in self.expired.items():
            deleted = [counted(number, _KINDS[kind]) for kind, number in kinds.items()]
            lines.append(f"{pipeline}: older than its retention and deleted: {', '.join(deleted)}")
        return lines


def tidy(
    ledger: Ledger, run: Run, *, stale_after: timedelta = STALE_AFTER, sleep: Callable[[float], None] = time.sleep
) -> Tidied:
    """Drop unneeded staging of a database, end abandoned epochs, report unexplained tables; safe while epochs run.

    Every epoch is checked again under its row lock, and ended if its lease ended ``stale_after`` ago; ``run`` is kept
    as the reason. An epoch with an attempt is checked half a lease later: a living one has renewed its lease by then,
    also after a jump of the database's clock. The next run commits a pre-committed epoch (INV-6).
    """
    ended = []
    with ledger.transaction() as tx:
        stale, pipelines = tx.epochs.stale(stale_after), tx.epochs.pipelines()
    if any(epoch.attempt for epoch in stale):
        sleep(_LOOK_AGAIN_SECONDS)
    for seen in stale:
        with ledger.transaction() as tx:
            tx.epochs.lock_pipeline(seen.pipeline)
            epoch = tx.epochs.lock(seen.pipeline, seen.epoch_id)
            if epoch.state is not EpochState.PLANNED or not epoch.lease_expired:
                continue
            attempt = abort_in(
                tx, epoch, f"its lease ended more than {stale_after} ago; ended by {run}", may_pause=True
            )
        discard(ledger, attempt)
        log.info("epoch.ended pipeline=%s epoch=%d by=janitor", epoch.pipeline, epoch.epoch_id)
        ended.append(str(epoch))
    swept = sum(sweep(ledger, pipeline) for pipeline in pipelines)
    with ledger.transaction() as tx:
        unexplained = tuple(tx.attempts.unexplained())
    for table in unexplained:
        log.warning("staging.unexplained table=epochline_staging.%s", table)
    with ledger.transaction() as tx:
        retentions, clocks = tx.erasures.retentions(), tx.erasures.clock() - datetime.now(UTC)
    if retentions and abs(clocks) > _CLOCKS_DIFFER:
        log.warning("retention.clocks_differ seconds=%.0f", clocks.total_seconds())
        return Tidied(swept=swept, ended=tuple(ended), unexplained=unexplained, clocks=clocks)
    return Tidied(swept=swept, ended=tuple(ended), unexplained=unexplained, expired=_expire(ledger, retentions))


def _expire(ledger: Ledger, retentions: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, int]]:
    """Delete history that is older than its retention, in small transactions.

    Plan and commit of the pipeline wait for one of these at most. One that waits for a commit itself gives up after a
    second, and the next janitor goes on.
    """
    expired: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for pipeline, kinds in retentions.items():
        for kind in _KINDS.keys() & kinds:
            deleted = _AT_ONCE
            while deleted >= _AT_ONCE:
                try:
                    deleted = _expire_some(ledger, pipeline, kind, kinds[kind])
                except (LockTimeoutError, StatementTimeoutError) as error:
                    log.info("retention.busy pipeline=%s kind=%s reason=%s", pipeline, kind, type(error).__name__)
                    break
                if deleted:
                    expired[pipeline][kind] = expired[pipeline].get(kind, 0) + deleted
    for pipeline, numbers in expired.items():
        log.info("retention.deleted pipeline=%s %s", pipeline, " ".join(f"{k}={n}" for k, n in numbers.items()))
    return dict(expired)


def _expire_some(ledger: Ledger, pipeline: str, kind: str, age: float) -> int:
    with ledger.transaction() as tx:
        tx.targets.limit_time(statement=timedelta(seconds=30), lock=timedelta(seconds=1))
        tx.epochs.lock_pipeline(pipeline)
        unfinished = tx.epochs.unfinished(pipeline)
        if unfinished is not None:
            tx.epochs.lock(pipeline, unfinished.epoch_id)
        return tx.erasures.expire(pipeline, kind, age, _AT_ONCE)


def refresh_log_ends(ledger: Ledger, source: OffsetSource, pipelines: Sequence[Pipeline], connection: str) -> int:
    """Store where the logs of pipelines begin and end, and how long Kafka keeps them; return how many partitions.

    For the pages; it decides nothing. Four requests to Kafka and one transaction, however many pipelines there are.
    Sources of another connection, and pipelines that have never planned, are left out.

    Raises:
        SourceError, LedgerError: Kafka or the ledger does not answer, or refuses.
    """
    kafkas = {
        pipeline.name: {name: kafka for name, kafka in pipeline.kafka_sources.items() if kafka.connection == connection}
        for pipeline in pipelines
    }
    ends = source.log_ends([kafka for sources in kafkas.values() for kafka in sources.values()])
    with ledger.transaction() as tx:
        for pipeline, sources in sorted(kafkas.items()):
            own = [
                replace(end, tp=in_ledger(name, end.tp))
                for name, kafka in sources.items()
                for end in ends
                if kafka.reads(end.tp.topic)
            ]
            tx.chain.keep_log_ends(pipeline, own)
    return len(ends)
