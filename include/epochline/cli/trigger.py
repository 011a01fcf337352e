"""`epochline trigger`: start a run in the stack's Airflow and follow it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochline.cli import printing
from epochline.errors import StackError

if TYPE_CHECKING:
    from epochline.local.airflow_api import AirflowApi

FAILED = 1
_LOOK_EVERY_SECONDS = 0.5


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("trigger")(trigger)


def trigger(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name, which is the DAG's id.")],
    max_records: Annotated[int | None, typer.Option(min=1, help="Most offsets in the epoch.")] = None,
    note: Annotated[str | None, typer.Option(help="Kept with the epoch, and shown in Airflow.")] = None,
    unpause: Annotated[bool, typer.Option("--unpause", help="Unpause a paused DAG.")] = False,
    follow: Annotated[bool, typer.Option(help="Wait until the run has ended, and print the outcome.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: the run and its epoch.")] = False,
) -> None:
    """Start a run of PIPELINE in the stack's Airflow, follow its tasks, and print the outcome.

    Exit code 0: its epoch is committed, or there was nothing to read (with --no-follow: the run is started); 1: the
    run failed, or Airflow refuses; 2: wrong use.
    """
    api = stack_api()
    paused = api.is_paused(pipeline)
    if paused is None:
        raise StackError(
            f"Airflow has no DAG {pipeline!r}. Is its file in the dags folder, and does it import? A new file is found"
            " within seconds."
        )
    if paused and not unpause:
        raise StackError(
            f"DAG {pipeline} is paused, so a run would wait for ever. Nothing was started. Give --unpause, which"
            " also starts the DAG's schedule, or unpause the DAG in Airflow."
        )
    # Before the DAG is unpaused: its schedule may start a run at once, which then takes the records.
    before = _ask(pipeline, "newest_epoch_id") if follow else None
    if paused:
        api.pause(pipeline, False)
    conf: dict[str, Any] = {"record_limit": max_records, "note": note}
    run_id = api.trigger(pipeline, {key: value for key, value in conf.items() if value is not None}, note)
    if not follow:
        printing.say(printing.as_json({"dag_id": pipeline, "run_id": run_id}) if as_json else f"started run {run_id}")
        return
    printing.progress(f"started run {run_id} of {pipeline}")
    state = _follow(api, pipeline, run_id)
    epoch = _ask(pipeline, "epoch_of_run", dag_id=pipeline, run_id=run_id)
    if epoch is None and before is not None and state == "success":
        epoch = _ask(pipeline, "epoch_committed_after", epoch_id=before["epoch_id"])
    if as_json:
        printing.say(printing.as_json({"dag_id": pipeline, "run_id": run_id, "state": state, "epoch": epoch}))
    else:
        printing.say(_outcome(pipeline, run_id, state, epoch))
    if state != "success":
        raise typer.Exit(FAILED)


def stack_api() -> AirflowApi:
    """The API of the stack's Airflow, logged in.

    Raises:
        StackError: Airflow does not run.
    """
    from epochline.local.airflow_api import AirflowApi
    from epochline.local.stack import Stack

    stack = Stack()
    if stack.airflow.pids["api-server"] is None:
        raise StackError(f"no Airflow runs in {stack.home}; start it with `epochline up`.")
    return AirflowApi(stack.airflow.url, timeout=20, token=stack.airflow.token())


def _follow(api: AirflowApi, dag_id: str, run_id: str) -> str:
    from epochline.local.airflow_api import FINISHED

    shown: dict[str, tuple[str | None, int]] = {}
    while True:
        state = api.run_state(dag_id, run_id)
        for task in api.task_states(dag_id, run_id):
            now = (task.state, task.try_number)
            if task.state is not None and shown.get(task.task_id) != now:
                again = f" (try {task.try_number})" if task.try_number > 1 else ""
                printing.progress(f"  {task.task_id:<13} {task.state}{again}")
                shown[task.task_id] = now
        if state in FINISHED:
            return state
        time.sleep(_LOOK_EVERY_SECONDS)


def _ask(pipeline: str, query: str, **values: Any) -> dict[str, Any] | None:
    """The first row of a query on the pipeline's ledger."""
    from epochline.cli import connections, database
    from epochline.cli.ledger import connection_of

    with database.session(connections.postgres_dsn(connection_of(pipeline))) as opened:
        found = database.ask(opened, query, pipeline=pipeline, **values)
    return found[0] if found else None


def _outcome(pipeline: str, run_id: str, state: str, epoch: dict[str, Any] | None) -> str:
    if epoch is None and state == "success":
        return f"{pipeline}: nothing to read; run {run_id} was skipped and no epoch was written"
    if epoch is None:
        return f"run {run_id} of {pipeline} is {state} and has no epoch; the log of plan_epoch says why"
    name = f"epoch {epoch['epoch_id']} of {pipeline}"
    if epoch["state"] == "COMMITTED":
        whose = (
            f"run {state}" if epoch["run_id"] == run_id else f"by run {epoch['run_id']}, which took the records first"
        )
        return (
            f"{name} is committed: {epoch['records_read']} records read, {epoch['records_passed']} passed,"
            f" {epoch['records_skipped']} skipped, {epoch['records_quarantined']} quarantined, {epoch['rows_written']}"
            f" rows written, at {epoch['committed_at']:%Y-%m-%d %H:%M:%S %Z} ({whose})"
        )
    why = f": {epoch['error']}" if epoch["error"] else ""
    return f"run {run_id} is {state}; {name} is {epoch['state']}{why}"
