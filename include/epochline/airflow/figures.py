"""The figures of an epoch, sent the way that Airflow sends its own: by StatsD or OpenTelemetry, where it has one.

Each is a gauge of the newest epoch. A task's process lives for one epoch, and OpenTelemetry takes a counter that begins
anew in each process for one counter that went back. Prometheus' page has totals.
"""

import logging

from epochline.protocol.epoch import Epoch, EpochState

log = logging.getLogger(__name__)


def send_figures(epoch: Epoch) -> None:
    """Send what came of an epoch. A failure is logged and raises nothing: the outcome stands.

    A name ends with the pipeline's, because StatsD itself knows no tags.
    """
    from airflow.sdk.observability.stats import Stats

    is_committed = epoch.state is EpochState.COMMITTED
    figures: dict[str, float | None] = {"committed": int(is_committed), "attempts": epoch.attempt}
    if is_committed:
        counts = epoch.counts
        figures |= {
            "records": counts.read, "records_skipped": counts.skipped, "records_quarantined": counts.quarantined,
            "rows_written": epoch.rows_written,
        }  # fmt: skip
        if epoch.pre_committed_at is not None and epoch.committed_at is not None:
            figures["pre_commit_seconds"] = (epoch.pre_committed_at - epoch.planned_at).total_seconds()
            figures["commit_seconds"] = (epoch.committed_at - epoch.pre_committed_at).total_seconds()
    try:
        for name, value in figures.items():
            if value is not None:
                Stats.gauge(f"epochline.epoch.{name}.{epoch.pipeline}", value)
    except Exception as error:
        log.warning("figures.not_sent reason=%s: %s", type(error).__name__, error)
