"""`epochline logs`: the task logs of the runs that made an epoch."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochline.cli import connections, printing
from epochline.cli.airflow_access import airflow_api
from epochline.cli.airflow_runs import FINISHED
from epochline.cli.database import Session, ask, session
from epochline.cli.ledger import check_known, connection_of
from epochline.cli.options import Name, until_interrupted
from epochline.errors import EpochNotFoundError, StackError
from epochline.protocol.standing import standing_of_pipeline

if TYPE_CHECKING:
    from epochline.cli.airflow_api import AirflowApi

_LOOK_EVERY_SECONDS = 1.0
_ENDED = ("COMMITTED", "ABORTED")
_COMPLETE = ("success", "failed", "skipped", "upstream_failed", "removed")
"""States of a try whose log gets no more messages."""
_GROUP, _END_OF_GROUP = "::group::", "::endgroup::"
_OF_AIRFLOW = ("Log message source details", "Pre Execute", "Post Execute")
_Which = tuple[str, str, int]
"""A run, a task and the number of a try."""
_AT_TERMINALS = ("cli", "operator")
"""What stands in the place of a DAG's id if a command made the epoch."""


def logs(
    pipeline: Name,
    epoch: Annotated[int | None, typer.Argument(min=1, help="Id of the epoch; the newest if not given.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the epoch and its runs have ended, or until Ctrl-C.")
    ] = False,
) -> None:
    """Print the logs of the tasks of an epoch of PIPELINE, with Spark's output; by default of the newest epoch.

    Changes nothing. If the newest run wrote no epoch, prints the run's log and the reason.

    Prints each try of each task, in the order of their starts. Spark's output is in the log of pre_commit. Exit code 0:
    success; 1: there is no such pipeline or epoch, a command and not Airflow made it, or Airflow does not answer; 2:
    wrong use; 130: interrupted.
    """
    with until_interrupted(), session(connections.adapters().postgres_dsn(connection_of(pipeline))) as ledger:
        if epoch is None and _wrote_no_epoch(ledger, pipeline):
            return
        newest = ask(ledger, "newest_epoch_id", pipeline=pipeline)[0]["epoch_id"]
        if not newest:
            check_known(pipeline, {row["pipeline"] for row in ask(ledger, "pipelines")})
            raise EpochNotFoundError(f"{pipeline} has no epoch yet; `epochline trigger {pipeline}` starts a run.")
        number = epoch or newest
        runs = _runs(ledger, pipeline, number)
        if all(run["dag_id"] in _AT_TERMINALS for run in runs):
            raise StackError(
                f"epoch {number} of {pipeline} was made by a command on {runs[-1]['host']} and not by Airflow, so no"
                f" task has a log of it. `epochline ledger {pipeline} --epoch {number}` shows its attempts and their"
                " errors; Spark's own output of the command is in spark-cli.log, in the logs folder of that host's"
                " stack."
            )
        api = airflow_api()
        printed = _Printed(api)
        while True:
            # Asked before the logs, which then have everything until the end.
            state = ask(ledger, "outcome_of_epoch", pipeline=pipeline, epoch=number)[0]["state"]
            runs = [run for run in _runs(ledger, pipeline, number) if run["dag_id"] not in _AT_TERMINALS]
            ended = state in _ENDED and all(api.run_state(run["dag_id"], run["run_id"]) in FINISHED for run in runs)
            for run in runs:
                printed.go_on(run["dag_id"], run["run_id"])
            if ended or not follow:
                break
            time.sleep(_LOOK_EVERY_SECONDS)
    printing.progress(f"epoch {number} of {pipeline} is {state}")


def _wrote_no_epoch(ledger: Session, pipeline: str) -> bool:
    """Print the log of the newest run if it wrote no epoch, and why; False if it wrote one."""
    failed = [row for row in ask(ledger, "standing", pipeline=pipeline) if row["plan_error"] is not None]
    for row in failed:
        try:
            if row["plan_dag_id"] not in _AT_TERMINALS:
                _Printed(airflow_api()).go_on(row["plan_dag_id"], row["plan_run_id"])
        finally:  # The ledger knows the reason, also where no Airflow has the log.
            printing.progress(f"run {row['plan_run_id']} wrote no epoch. {pipeline}: {standing_of_pipeline(row)}")
    return bool(failed)


def _runs(ledger: Session, pipeline: str, epoch: int) -> list[dict[str, Any]]:
    runs = ask(ledger, "runs_of_epoch", pipeline=pipeline, epoch=epoch)
    if not runs:
        raise EpochNotFoundError(
            f"the ledger has no epoch {epoch} of {pipeline}; `epochline ledger {pipeline}` lists them."
        )
    return runs


class _Printed:
    """Prints each line of the tasks' logs once."""

    def __init__(self, api: "AirflowApi") -> None:
        self._api = api
        self._lines: dict[_Which, int] = {}
        self._complete: set[_Which] = set()
        self._last: _Which | None = None

    def go_on(self, dag_id: str, run_id: str) -> None:
        """Print what the run's logs have had since the last call."""
        for task_try in self._api.tries(dag_id, run_id):
            key = (run_id, task_try.task_id, task_try.number)
            if key in self._complete:
                continue
            lines = list(lines_of(self._api.log(dag_id, run_id, task_try)))
            printed = self._lines.get(key)
            if key != self._last and len(lines) > (printed or -1):
                self._last = key
                state = "" if task_try.state is None else f", {task_try.state.replace('_', ' ')}"
                printing.say(
                    f"==== {task_try.task_id}, try {task_try.number}{state},"
                    f" from {task_try.started_at[:19]} (run {run_id})"
                )
            for line in lines[printed or 0 :]:
                printing.say(line)
            self._lines[key] = len(lines)
            if task_try.state in _COMPLETE:
                self._complete.add(key)


def lines_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a log, without what Airflow says of itself before and after the task, except warnings and errors."""
    group = None
    for message in messages:
        event = str(message["event"])
        if event.startswith(_GROUP):
            group = event.removeprefix(_GROUP)
        elif event == _END_OF_GROUP:
            group = None
        elif group not in _OF_AIRFLOW or message.get("level") in ("warning", "error", "critical"):
            yield from _lines_of_one(message, event)


def _lines_of_one(message: Mapping[str, Any], event: str) -> Iterator[str]:
    moment = str(message.get("timestamp") or "")[11:19] or " " * 8
    level = str(message.get("level") or "info")
    yield f"{moment} {'' if level == 'info' else f'{level.upper()} '}{event}"
    for error in message.get("error_detail") or ():
        # Airflow's own exceptions say that a task failed or was skipped, and their text is the whole message.
        frames = () if str(error["exc_type"]).startswith("Airflow") else error.get("frames") or ()
        for frame in frames:
            yield f"           {frame['filename']}:{frame['lineno']} in {frame['name']}"
        yield f"         {error['exc_type']}: {error['exc_value']}"
