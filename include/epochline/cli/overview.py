"""`epochline list`: every declared pipeline, its state, its lag and its schedule."""

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from epochline.cli import printing
from epochline.cli.options import AsJson
from epochline.cli.standing import Servers, decided, overview_of, standing_of
from epochline.cli.trigger import stack_api
from epochline.config import discovery
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochlineError, SourceError, StackError
from epochline.local.airflow_api import AirflowApi


def list(as_json: AsJson = False) -> None:
    """List the declared pipelines: state, lag, last commit with its quarantined records, schedule and next run.

    Changes nothing. The lag is unknown while Kafka cannot be reached. The next run is missing if the stack's Airflow
    does not run, and for a DAG that is paused or has no schedule. Exit code 0: success, even without Kafka and Airflow;
    1: a declaration is broken, or a ledger cannot be reached, and the other pipelines are shown; 2: wrong use.
    """
    declared = discovery.look()
    rows, errors = [], {}
    with ExitStack() as block:
        servers, scheduled = Servers(block), _Schedules()
        for name, pipeline in declared.pipelines.items():
            try:
                rows.append(_row(pipeline, servers) | scheduled.of(pipeline))
            except EpochlineError as error:
                errors[name] = error
    if as_json:
        schedules = [None if row["schedule"] is None else str(row["schedule"]) for row in rows]
        printing.say(printing.as_json([{**row, "schedule": text} for row, text in zip(rows, schedules, strict=True)]))
    else:
        columns = ("pipeline", "state", "since", "lag", "last_commit", "quarantined", "schedule", "next_run", "reason")
        printing.table(
            [name.replace("_", " ") for name in columns],
            [[cell_of(row, name) for name in columns] for row in rows],
            least=("schedule", "next run"),
        )
    for name, why in errors.items():
        printing.progress(f"{name}: cannot be asked: {why}")
    printing.broken(declared.broken)
    if errors or declared.broken:
        raise typer.Exit(1)


def cell_of(row: Mapping[str, Any], column: str) -> Any:
    """What the table shows of a pipeline in a column."""
    value = row[column]
    match column:
        case "lag":
            return "unknown" if value is None else printing.number(value)
        case "quarantined" if value:
            return f"{printing.number(value)} ({row['quarantined_share']:.1%})"
        case "next_run" if row["dag_paused"]:
            return "DAG paused"
        case "next_run" if value is not None and value <= datetime.now(UTC):
            return "due"  # Airflow starts it once an earlier run has ended.
        case "schedule" if isinstance(value, timedelta):
            return f"every {printing.duration(value.total_seconds())}"
    return value


def _row(pipeline: Pipeline, servers: Servers) -> dict[str, Any]:
    ledger = servers.ledger(pipeline)
    overview = overview_of(pipeline, ledger)
    try:
        standing = standing_of(pipeline, overview, ledger, servers.source(pipeline))
        lags = [one["lag"] for one in standing.partitions]
        reason, lag = standing.reason, None if None in lags else sum(lags)
    except (SourceError, ConfigurationError) as error:
        standing, lag = decided(overview), None
        reason = standing.reason or f"lag unknown: {error}"
    read, quarantined = overview["committed_read"], overview["committed_quarantined"]
    return {
        "pipeline": pipeline.name,
        "state": standing.state,
        "since": standing.since,
        "reason": reason,
        "epoch": overview["epoch_id"],
        "lag": lag,
        "last_commit": overview["committed_at"],
        "quarantined": quarantined,
        "quarantined_share": quarantined / read if read else None,
    }


class _Schedules:
    """The schedule of each pipeline, and its next run by the stack's Airflow. An Airflow that is away is asked once."""

    def __init__(self) -> None:
        try:
            self._api: AirflowApi | None = stack_api()
        except StackError:
            self._api = None

    def of(self, pipeline: Pipeline) -> dict[str, Any]:
        """``dag_paused`` is None if it is unknown; ``next_run`` is None also if no run starts by itself."""
        dag = None
        try:
            dag = self._api.dag(pipeline.name) if self._api is not None else None
        except StackError:
            self._api = None
        return {
            "schedule": pipeline.schedule,
            "dag_paused": None if dag is None else dag.paused,
            "next_run": None if dag is None or dag.paused else dag.next_run,
        }
