"""The figures of every pipeline as Prometheus' metrics, from one snapshot of the ledger.

Labels are names that somebody declared, or words of this package: a pipeline has `SERIES` series, one more for each of
its sinks, and two for each state table. What the ledger cannot tell now is left out; nothing is told from memory.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from epochline.airflow.pages.totals import COUNTED, totals
from epochline.airflow.reading import Snapshot, snapshot
from epochline.errors import EpochlineError
from epochline.protocol.standing import standing_of_pipeline

log = logging.getLogger(__name__)

STATEMENT_SECONDS = 3
"""PostgreSQL ends each of the five statements of a scrape after so long. Prometheus waits ten seconds by default."""

ENDS_HOLD_SECONDS = 900
"""Ends of logs that are older tell nothing of the lag: the DAG `epochline_log_ends` asks Kafka every five minutes."""

PHASES = ("wait", "plan", "start", "stage", "seal", "commit", "publish")

GAUGES = {
    "lag_records": "Records between head and end of the logs.",
    "lag_seconds": "Time in which the oldest unread record was written, at most; 0 if nothing is unread.",
    "time_to_loss_seconds": "Least time until Kafka's retention may delete an unread record.",
    "log_ends_age_seconds": "Time since Kafka last said where the logs end. Lag and time to loss are left out if it is"
    f" more than {ENDS_HOLD_SECONDS}.",
    "unfinished_epoch_age_seconds": "Time since the plan of the unfinished epoch; 0 if no epoch is unfinished.",
    "last_commit_timestamp_seconds": "Time of the last commit.",
    "last_epoch_longest_latency_seconds": "Age of the oldest record of the last committed epoch, at its commit.",
}
"""By name, without the prefix: what each says of a pipeline."""

COUNTERS = {
    "epochs_committed": "Epochs that were committed.",
    "epochs_aborted": "Aborts of epochs. An epoch that is tried again may be aborted again.",
    "retries": "Attempts after the first one of each epoch.",
    "records": "Records that committed epochs read.",
    "records_skipped": "Records that the parse of committed epochs left out.",
    "records_quarantined": "Records that committed epochs set aside.",
    "records_too_late": "Records that came after their window had closed, in committed epochs.",
    "rows_written": "Rows that committed epochs wrote.",
    "fenced_writes": "Sessions of attempts that were no longer live whose write was refused.",
}
"""By name, without prefix and ``_total``."""

SERIES = 1 + len(GAUGES) + len(PHASES) + len(COUNTERS)
"""Series of a pipeline without sinks and state, at most; the first is its state."""

Row = Mapping[str, Any]


class Scrape(CollectorRegistry):
    """Asks the ledger when it is written out."""

    def __init__(self, dsn: Callable[[], str], seen: Callable[[list[str]], set[str]]) -> None:
        super().__init__()
        self._dsn = dsn
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """One metric that says whether the ledger answered; if it did, those of the pipelines that may be seen."""
        try:
            families = self._families()
        except Exception as error:
            # Also what Airflow's own database raises, where it keeps the connection. Our own messages hold no password.
            told = f": {error}" if isinstance(error, EpochlineError) else ""
            log.warning("metrics.ledger_down reason=%s%s", type(error).__name__, told)
            families = []
        yield GaugeMetricFamily("epochline_up", "Whether the ledger answered this scrape.", value=bool(families))
        yield from families

    def _families(self) -> Sequence[Metric]:
        dsn = self._dsn()
        with snapshot(dsn, statement_seconds=STATEMENT_SECONDS) as ledger:
            rows = _rows(dsn, ledger, self._seen)
            states = [row for row in ledger.ask("metrics_states").rows if row["pipeline"] in rows]
        return [*_of_pipelines(rows), *_of_parts(rows, states)]


def _rows(dsn: str, ledger: Snapshot, seen: Callable[[list[str]], set[str]]) -> dict[str, Row]:
    """What the ledger says of each pipeline that may be seen and was not dropped."""
    standing = [row for row in ledger.ask("page_pipelines", pipeline=None).rows if not row["dropped_at"]]
    visible = seen([row["pipeline"] for row in standing])
    more = {row["pipeline"]: row for row in ledger.ask("metrics_pipelines").rows}
    sums = totals(dsn, ledger, standing)
    return {
        name: {**row, **more.get(name, {}), "sums": sums.get(name, {})}
        for row in standing
        for name in (row["pipeline"],)
        if name in visible
    }


def _of_pipelines(rows: Mapping[str, Row]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "epochline_pipeline_state", "1 for the state that it is in.", labels=("pipeline", "state")
    )
    gauges = {name: _gauge(name, told) for name, told in GAUGES.items()}
    phases = _gauge("last_epoch_phase_seconds", "Duration of a phase of the last committed epoch.", "phase")
    counters = {
        name: CounterMetricFamily(f"epochline_{name}", told, labels=("pipeline",)) for name, told in COUNTERS.items()
    }
    for name, row in rows.items():
        state.add_metric((name, str(standing_of_pipeline(row).word)), 1)
        for figure, value in _figures(row).items():
            if value is not None:
                gauges[figure].add_metric((name,), value)
        for phase in PHASES:
            if (seconds := row.get(f"{phase}_seconds")) is not None:
                phases.add_metric((name, phase), seconds)
        counted = {COUNTED[key]: count for key, count in row["sums"].items()} | {"fenced_writes": row.get("refused")}
        for figure, count in counted.items():
            if count is not None:
                counters[figure].add_metric((name,), count)
    yield from (state, *gauges.values(), phases, *counters.values())


def _figures(row: Row) -> dict[str, float | None]:
    committed, ends, lag = row["committed_at"], row.get("ends_seconds"), row["lag"]
    figures = {
        "log_ends_age_seconds": ends,
        "unfinished_epoch_age_seconds": row.get("epoch_seconds") or 0.0,
        "last_commit_timestamp_seconds": committed and committed.timestamp(),
        "last_epoch_longest_latency_seconds": row.get("longest_latency_seconds"),
    }
    if ends is None or ends > ENDS_HOLD_SECONDS:
        return figures
    return figures | {
        "lag_records": lag,
        "lag_seconds": row["unread_seconds"] if lag else 0.0,
        "time_to_loss_seconds": row["seconds_to_loss"],
    }


def _of_parts(rows: Mapping[str, Row], states: Sequence[Row]) -> Iterator[Metric]:
    unpublished = _gauge("unpublished_epochs", "Committed epochs that a sink does not show yet.", "sink")
    for name, row in rows.items():
        due = row["due"] or {}
        for sink in sorted({*row.get("sinks", ()), *due}):
            unpublished.add_metric((name, sink), due.get(sink, 0))
    keys = _gauge("state_keys", "Keys of a state table after the newest epoch that wrote state.", "table")
    size = _gauge("state_bytes", "Size of a state table on disk, with its indexes.", "table")
    for row in states:
        keys.add_metric((row["pipeline"], row["state"]), row["keys"])
        if row["bytes"] is not None:
            size.add_metric((row["pipeline"], row["state"]), row["bytes"])
    yield from (unpublished, keys, size)


def _gauge(name: str, told: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"epochline_{name}", told, labels=("pipeline", *labels))
