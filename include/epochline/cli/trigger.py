"""`epochline trigger`: start a run in Airflow and follow it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from epochline.cli import connections, database, printing
from epochline.cli.airflow_access import airflow_api
from epochline.cli.airflow_runs import FINISHED, TaskState, new_run_id, why_it_failed, why_it_waits
from epochline.cli.ledger import connection_of, next_step
from epochline.cli.options import declared_pipelines
from epochline.config import discovery
from epochline.config.places import dags_folder
from epochline.errors import EpochlineError, PipelinePausedError, StackError
from epochline.protocol.quantities import counted
from epochline.protocol.standing import way_out_of_pause

if TYPE_CHECKING:
    from epochline.cli.airflow_api import AirflowApi

FAILED = 1
PATIENCE_SECONDS = 120.0
"""How long Airflow and PostgreSQL may be away, as while one of them restarts."""
STUCK_AFTER_SECONDS = 10.0
"""A run of which nothing changes for so long says what it waits for."""
_LOOK_EVERY_SECONDS = 0.5

T = TypeVar("T")


def trigger(
    pipeline: Annotated[
        str, typer.Argument(help="The pipeline's name, which is the DAG's id.", autocompletion=declared_pipelines)
    ],
    max_records: Annotated[int | None, typer.Option(min=1, help="Most offsets in the epoch.")] = None,
    note: Annotated[str | None, typer.Option(help="Kept with the epoch, and shown in Airflow.")] = None,
    unpause: Annotated[bool, typer.Option("--unpause", help="Unpause a paused DAG.")] = False,
    follow: Annotated[bool, typer.Option(help="Wait until the run has ended, and print the outcome.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: the run and its epoch.")] = False,
) -> None:
    """Start a run of PIPELINE in Airflow, follow its tasks, and print the outcome.

    Airflow is the one that $EPOCHLINE_AIRFLOW_URL names, else the embedded stack's (docs/settings.md).

    While Airflow or PostgreSQL is away, as during a restart, the command waits for up to two minutes. If the run makes
    no progress, the command says what the run waits for. Exit code 0: the run's epoch is committed, or there was
    nothing to read (with --no-follow: the run is started); 1: the run failed, or Airflow refuses or stays away;
    2: wrong use; 130: interrupted, the run continues.
    """
    api = _patiently(airflow_api)
    dag = _patiently(api.dag, pipeline)
    if dag is None and (left_out := discovery.why_left_out(pipeline)) is not None:
        raise StackError(left_out)
    if dag is None:
        raise StackError(_missing(api, pipeline))
    if dag.paused and not unpause:
        raise StackError(
            f"DAG {pipeline} is paused, so a run would wait for ever. Nothing was started. Give --unpause, which"
            " also starts the DAG's schedule, or unpause the DAG in Airflow."
        )
    ledger = connections.adapters().postgres_dsn(connection_of(pipeline))
    standing = _ask(ledger, pipeline, "standing")
    if standing is not None and standing["paused_at"]:
        raise PipelinePausedError(
            f"{pipeline} is paused by {standing['paused_by']} ({standing['paused_reason']}). Nothing was started.",
            way_out_of_pause(pipeline, standing["paused_command"]),
        )
    # Before the DAG is unpaused: its schedule may start a run at once, which then takes the records.
    before = _ask(ledger, pipeline, "newest_epoch_id") if follow else None
    if dag.paused:
        _patiently(api.pause, pipeline, False)
    options: dict[str, Any] = {"record_limit": max_records, "note": note}
    conf = {key: value for key, value in options.items() if value is not None}
    # With an id of its own, so that a request that is sent again starts no second run.
    run_id = _patiently(api.trigger, pipeline, conf, note, new_run_id())
    if not follow:
        printing.say(printing.as_json({"dag_id": pipeline, "run_id": run_id}) if as_json else f"started run {run_id}")
        return
    printing.progress(f"started run {run_id} of {pipeline}")
    try:
        state = _follow(api, pipeline, run_id, lambda: _ask(ledger, pipeline, "standing"))
    except KeyboardInterrupt:
        printing.progress(f"run {run_id} goes on in Airflow; `epochline logs {pipeline} --follow` follows its epoch")
        raise
    epoch = _ask(ledger, pipeline, "epoch_of_run", dag_id=pipeline, run_id=run_id)
    if epoch is None and before is not None and state == "success":
        epoch = _ask(ledger, pipeline, "epoch_committed_after", epoch_id=before["epoch_id"])
    if as_json:
        printing.say(printing.as_json({"dag_id": pipeline, "run_id": run_id, "state": state, "epoch": epoch}))
    else:
        advice = None
        if epoch is None and state != "success":
            advice = _patiently(why_it_failed, api, pipeline, run_id)
        elif epoch is not None and state != "success":
            row = _ask(ledger, pipeline, "page_epoch", epoch_id=epoch["epoch_id"])
            advice = None if row is None else next_step(row)
        printing.say(_outcome(pipeline, run_id, state, epoch, advice))
    if state != "success":
        raise typer.Exit(FAILED)


def _missing(api: "AirflowApi", pipeline: str) -> str:
    """Why Airflow has no DAG for a pipeline, as far as that is known."""
    reads = ", ".join(_patiently(api.folders)) or "no file that this login may see"
    return (
        f"Airflow at {api.access.url} has no DAG {pipeline!r}. It reads its DAGs from {reads}; the declarations of this"
        f" command are in {dags_folder()}. Does Airflow get that file, and does it import? A new file is found within"
        " seconds. `epochline validate` checks it."
    )


def _follow(api: "AirflowApi", dag_id: str, run_id: str, standing: Callable[[], dict[str, Any] | None]) -> str:
    def look() -> tuple[str, list[TaskState]]:
        return api.run_state(dag_id, run_id), api.task_states(dag_id, run_id)

    shown: dict[str, tuple[str | None, int]] = {}
    changed, reported = time.monotonic(), None
    while True:
        state, tasks = _patiently(look)
        for task in tasks:
            now = (task.state, task.try_number)
            if task.state is not None and shown.get(task.task_id) != now:
                again = f" (try {task.try_number})" if task.try_number > 1 else ""
                printing.progress(f"  {task.task_id:<13} {task.state}{again}")
                shown[task.task_id] = now
                if task.state == "up_for_retry" and (row := standing()) is not None:
                    why = row["plan_error"] or row["failure"]
                    printing.progress(f"  {'':<13} {why or 'no reason is known yet'}")
                changed = time.monotonic()
        if state in FINISHED:
            return state
        if time.monotonic() - changed >= STUCK_AFTER_SECONDS:
            why = _patiently(why_it_waits, api, dag_id, run_id, state, tasks)
            if why is not None and why != reported:
                printing.progress(f"  run {run_id} is {state}: {why}")
            changed, reported = time.monotonic(), why
        time.sleep(_LOOK_EVERY_SECONDS)


def _patiently(call: Callable[..., T], *arguments: Any) -> T:
    """Call again while Airflow or PostgreSQL is away, and say so once.

    Raises:
        AirflowUnavailableError, LedgerUnavailableError: it stayed away.
    """

    def say(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            printing.progress(f"  waiting for up to {printing.duration(PATIENCE_SECONDS)}: {state.outcome.exception()}")

    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, EpochlineError) and error.retryable),
        stop=stop_after_delay(PATIENCE_SECONDS),
        wait=wait_fixed(_LOOK_EVERY_SECONDS),
        before_sleep=say,
        reraise=True,
    )(call, *arguments)


def _ask(dsn: str, pipeline: str, query: str, **values: Any) -> dict[str, Any] | None:
    """The first row of a query on the pipeline's ledger."""

    def ask() -> list[dict[str, Any]]:
        with database.session(dsn) as opened:
            return database.ask(opened, query, pipeline=pipeline, **values)

    rows = _patiently(ask)
    return rows[0] if rows else None


def _outcome(pipeline: str, run_id: str, state: str, epoch: dict[str, Any] | None, advice: str | None) -> str:
    if epoch is None and state == "success":
        return f"{pipeline}: nothing to read; run {run_id} was skipped and no epoch was written"
    if epoch is None:
        return f"run {run_id} of {pipeline} is {state} and has no epoch. {advice or 'The log of plan_epoch says why'}"
    name = f"epoch {epoch['epoch_id']} of {pipeline}"
    if epoch["state"] == "COMMITTED":
        owner = (
            f"run {state}" if epoch["run_id"] == run_id else f"by run {epoch['run_id']}, which took the records first"
        )
        read, aside = epoch["records_read"], epoch["records_quarantined"]
        share = f" ({aside / read:.1%})" if aside else ""
        return (
            f"{name} is committed: {counted(read, 'record')} read, {printing.number(epoch['records_passed'])} passed,"
            f" {printing.number(epoch['records_skipped'])} skipped, {printing.number(aside)} quarantined{share},"
            f" {counted(epoch['rows_written'], 'row')} written, at {printing.moment(epoch['committed_at'])}"
            f" ({owner})"
        )
    why = f": {epoch['error']}" if epoch["error"] else ""
    return f"run {run_id} is {state}; {name} is {epoch['state']}{why}. {advice}"
