"""`epochline list` and `epochline lag`: the state of the declared pipelines, their lag and their schedules."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from epochline.cli import printing
from epochline.cli.airflow_access import airflow_api
from epochline.cli.options import AsJson, Follow, declared_pipelines, refresh, refuse_with_follow
from epochline.cli.standing import Servers, Standing, decided, overview_of, standing_of
from epochline.config import discovery
from epochline.config.discovery import Declared
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochlineError, SourceError, StackError
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.cli.airflow_api import AirflowApi

TOO_FAR_BEHIND = 3

T = TypeVar("T")
Errors = Mapping[str, EpochlineError]
"""By pipeline, why it could not be asked."""


def list(as_json: AsJson = False) -> None:
    """List the declared pipelines: state, lag, last commit with its quarantined records, schedule and next run.

    Changes nothing. The lag is unknown while Kafka cannot be reached. The next run is missing if Airflow does not
    answer, and for a DAG that is paused or has no schedule. Exit code 0: success, even without Kafka and Airflow;
    1: a declaration is broken, or a ledger cannot be reached, and the other pipelines are shown; 2: wrong use.
    """
    declared, scheduled = discovery.look(), _Schedules()
    answers, errors = _ask_each(declared, lambda pipeline, servers: _row(pipeline, servers) | scheduled.of(pipeline))
    rows = answers.values()
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
    _name_errors(declared, errors)
    if errors or declared.broken:
        raise typer.Exit(1)


def lag(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="One pipeline; all declared ones if not given.", autocompletion=declared_pipelines),
    ] = None,
    fail_above: Annotated[
        int | None, typer.Option(min=0, help="Exit with 3 if a pipeline lags by more records than this, or stands.")
    ] = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Show the lag of each partition: head, end of the log, records between them, and time since the last commit.

    Changes nothing. The end is the last stable offset, up to which a run can read now. docs/operations.md explains each
    state. Exit code 0: success; 1: a declaration is broken, or Kafka or the ledger of a pipeline cannot be reached, and
    the other pipelines are shown; 2: there is no such pipeline, or wrong use; 3: with --fail-above, a pipeline is
    further behind, or stands; 130: Ctrl-C ended --follow.
    """
    if pipeline is None:
        declared = discovery.look()
    else:
        declared = Declared(pipelines={pipeline: discovery.find(pipeline)}, broken=())

    def look() -> tuple[Mapping[str, Standing], Errors]:
        standings, errors = _ask_each(declared, _standing)
        if pipeline is not None and errors:
            raise errors[pipeline]
        return standings, errors

    if follow:
        refuse_with_follow(json=as_json, fail_above=fail_above)
        refresh(lambda: partial(_show_lags, declared, *look()))
    standings, errors = look()
    if as_json:
        printing.say(printing.as_json([row for standing in standings.values() for row in standing.partitions]))
        _name_errors(declared, errors)
    else:
        _show_lags(declared, standings, errors)
    if errors or declared.broken:
        raise typer.Exit(1)
    above = [name for name, at in standings.items() if at.stands or _behind(at) > (fail_above or 0)]
    if fail_above is not None and above:
        raise typer.Exit(TOO_FAR_BEHIND)


def records_behind(pipeline: str) -> int:
    """How many records a run could read now, in all partitions.

    Raises:
        EpochlineError: no file declares the pipeline, or Kafka or the ledger cannot be reached.
    """
    with ExitStack() as block:
        return _behind(_standing(discovery.find(pipeline), Servers(block)))


def _ask_each(declared: Declared, ask: Callable[[Pipeline, Servers], T]) -> tuple[dict[str, T], Errors]:
    answers, errors = {}, {}
    with ExitStack() as block:
        servers = Servers(block)
        for name, pipeline in declared.pipelines.items():
            try:
                answers[name] = ask(pipeline, servers)
            except EpochlineError as error:
                errors[name] = error
    return answers, errors


def _name_errors(declared: Declared, errors: Errors) -> None:
    for name, reason in errors.items():
        printing.progress(f"{name}: cannot be asked: {reason}")
    printing.broken(declared.broken)


def _standing(pipeline: Pipeline, servers: Servers) -> Standing:
    ledger = servers.ledger(pipeline)
    return standing_of(pipeline, overview_of(pipeline, ledger), ledger, servers.source(pipeline))


def _behind(standing: Standing) -> int:
    return sum(row["lag"] or 0 for row in standing.partitions)


def _show_lags(declared: Declared, standings: Mapping[str, Standing], errors: Errors) -> None:
    """Print a table, a line for each pipeline, and what could not be asked."""
    columns = ("pipeline", "topic", "partition", "head", "end", "lag", "last commit", "state")
    cells = [
        {**row, "lag": printing.number(row["lag"]), "last commit": printing.ago(row["seconds_since_commit"])}
        for standing in standings.values()
        for row in standing.partitions
    ]
    charted = printing.bars([row["lag"] for standing in standings.values() for row in standing.partitions])
    lines = [{**row, "": bar} for row, bar in zip(cells, charted, strict=True)]
    shown = [*columns[:6], *[""] * printing.console().is_terminal, *columns[6:]]
    printing.table(shown, [[row[name] for name in shown] for row in lines], least=("", "end", "head"))
    for name, standing in standings.items():
        records = _behind(standing)
        how_far = f"{counted(records, 'record')} behind" if records else "caught up"
        since = f" since {printing.moment(standing.since)}" if standing.since is not None else ""
        text = f"{name}: stands{since}" if standing.stands else f"{name}: {how_far}"
        printing.say(text if standing.reason is None else f"{text}. {standing.reason}")
    _name_errors(declared, errors)


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
        lags = [partition["lag"] for partition in standing.partitions]
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
    """The schedule of each pipeline, and its next run by Airflow. An Airflow that is away is asked once."""

    def __init__(self) -> None:
        self._api: AirflowApi | None = None
        try:
            self._api = airflow_api()
        except ConfigurationError as error:
            printing.progress(f"next runs are unknown: {error}")
        except StackError:
            pass  # No variable names an Airflow, and the stack's does not run.

    def of(self, pipeline: Pipeline) -> dict[str, Any]:
        """``dag_paused`` is None if it is unknown; ``next_run`` is None also if no run starts by itself."""
        dag = None
        try:
            dag = self._api.dag(pipeline.name) if self._api is not None else None
        except StackError as error:
            printing.progress(f"next runs are unknown: {error}")
            self._api = None
        return {
            "schedule": pipeline.schedule,
            "dag_paused": None if dag is None else dag.paused,
            "next_run": None if dag is None or dag.paused else dag.next_run,
        }
