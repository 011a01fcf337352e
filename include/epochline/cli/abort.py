"""`epochline abort`: an operator ends an epoch."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Annotated, Any

import typer

from epochline.epoch import AbortOutcome, EpochState, Run
from epochline.errors import EpochNotFoundError, EpochStateError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("abort")(abort_command)


def abort_command(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    epoch: Annotated[int, typer.Argument(help="The epoch's id.", min=1)],
    reason: Annotated[str, typer.Option(help="Why; kept in the ledger.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    connection: Annotated[
        str | None, typer.Option(help="Connection id of the database; the pipeline's own if not given.")
    ] = None,
) -> None:
    """End EPOCH of PIPELINE: its staging is discarded, no offset moves, its range is read again by a later run.

    Also an epoch that is pre-committed, which nothing else ends but its commit. A committed epoch stays as it is.
    Exit code 0: the epoch is aborted, be it from before; 1: it is committed, there is none, or you said no; 2: wrong
    use.
    """
    from epochline.cli import connections, database, printing
    from epochline.cli.ledger import connection_of
    from epochline.coordinator import abort
    from epochline.ledger.postgres import PostgresLedger

    if not reason.strip():
        raise typer.BadParameter("say why: the reason is kept in the ledger", param_hint="--reason")
    dsn = connections.postgres_dsn(connection or connection_of(pipeline))
    with database.session(dsn) as opened:
        found = database.ask(opened, "last_epochs", pipeline=pipeline, epoch=epoch, limit=1)
        attempts = database.ask(opened, "attempts_of_epoch", pipeline=pipeline, epoch=epoch)
    if not found:
        raise EpochNotFoundError(f"the ledger has no epoch {epoch} of a pipeline {pipeline!r}.")
    _refuse_committed(found[0])
    _preview(found[0], attempts)
    if not yes and not typer.confirm("Abort it?"):
        printing.say("nothing was changed")
        raise typer.Exit(1)
    run = Run(dag_id="operator", run_id=f"{_user()}@{socket.gethostname()}", host=socket.gethostname())
    outcome = abort(
        PostgresLedger(dsn, application_name="epochline cli"), pipeline, epoch, run,
        reason=f"{run.run_id}: {reason.strip()}", by_operator=True,
    )  # fmt: skip
    if outcome is AbortOutcome.ALREADY_COMMITTED:
        raise EpochStateError(f"epoch {epoch} of {pipeline} was committed meanwhile; it stays. Nothing was changed.")
    if outcome is AbortOutcome.ALREADY_ABORTED:
        printing.say(f"epoch {epoch} of {pipeline} was aborted before; what was left of its staging is gone")
    else:
        printing.say(f"epoch {epoch} of {pipeline} is aborted; no offset moved, a later run reads its range again")


def _refuse_committed(epoch: dict[str, Any]) -> None:
    if epoch["state"] == EpochState.COMMITTED:
        raise EpochStateError(
            f"epoch {epoch['epoch_id']} of {epoch['pipeline']} was committed at"
            f" {epoch['committed_at']:%Y-%m-%d %H:%M:%S} with {epoch['rows_written']} rows; a committed epoch"
            " cannot be aborted. Nothing was changed."
        )


def _preview(epoch: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
    from epochline.cli import printing

    staged = attempts[-1]["rows_staged"] if attempts else 0
    printing.say(
        f"epoch {epoch['epoch_id']} of {epoch['pipeline']} is {epoch['state']}, planned by run {epoch['run_id']} of"
        f" {epoch['dag_id']}: {epoch['offsets']} offsets, attempt {epoch['attempt']}, {staged} rows staged"
    )
    what = {
        EpochState.PLANNED: "its attempt is fenced: what still writes for it is refused; its staging is discarded",
        EpochState.PRE_COMMITTED: "its sealed rows, which the next run would commit, are discarded and staged again",
        EpochState.ABORTED: "it is aborted already; what is left of its staging is discarded",
    }[epoch["state"]]
    printing.say(f"{what}; no offset moves")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as containers have
        return str(os.getuid())
