"""Operators' actions as commands: one per row of `epochline.operations.ACTIONS`, and lists of actions and savepoints.

Each command prints the preview, asks, acts, and prints the outcome. The use cases decide; this module does not.
"""

from __future__ import annotations

import getpass
import inspect
import os
import socket
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from annotated_types import Ge
from pydantic.fields import FieldInfo

from epochline.cli import printing
from epochline.errors import ActionRefusedError, ConfigurationError, DeclarationError
from epochline.operations import (
    ACTIONS,
    STALE_AFTER,
    Action,
    ActionPreview,
    DirectAction,
    EpochAction,
    Request,
    Subject,
    tidy,
)
from epochline.protocol.changes import words
from epochline.protocol.epoch import Run

_EXIT_CODES = (
    "Exit code 0: done and written to the ledger; 1: refused, the message says why, or not confirmed; 2: wrong use."
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for action in ACTIONS.values():
        app.command(action.name, help=f"{action.help}\n\n{_EXIT_CODES}")(_command(action))
    app.command("actions")(actions)
    app.command("savepoints")(savepoints)
    app.command("janitor")(janitor)


_Name = Annotated[str, typer.Argument(help="The pipeline's name.")]
_Connection = Annotated[
    str | None, typer.Option("--connection", help="Connection id of the database; the pipeline's own if not given.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def actions(pipeline: _Name, connection: _Connection = None, as_json: _AsJson = False) -> None:
    """Show operators' actions on PIPELINE, the newest last: who, when, why, and the values before and after.

    Changes nothing. Exit code 0: success, even if the list is empty; 1: the ledger cannot be read; 2: wrong use.
    """
    with subject_of(pipeline, connection).ledger.transaction() as tx:
        rows = tx.operators.actions(pipeline)
    if as_json:
        printing.say(printing.as_json([asdict(row) for row in rows]))
    elif not rows:
        printing.say(f"no operator has acted on {pipeline}")
    else:
        printing.table(
            ("action", "epoch", "who", "when", "why", "before", "after"),
            [
                (
                    row.action,
                    row.epoch_id,
                    row.actor,
                    row.acted_at,
                    row.reason,
                    words(row.before),
                    words(row.after),
                )
                for row in rows
            ],
        )


def savepoints(pipeline: _Name, connection: _Connection = None, as_json: _AsJson = False) -> None:
    """Show the savepoints of PIPELINE: epoch, size of the state, author, time and reason.

    Changes nothing. Exit code 0: success, even if the list is empty; 1: the ledger cannot be read; 2: wrong use.
    """
    with subject_of(pipeline, connection).ledger.transaction() as tx:
        found = tx.savepoints.of(pipeline)
    if as_json:
        printing.say(printing.as_json([asdict(one) for one in found]))
    elif not found:
        printing.say(f"{pipeline} has no savepoint")
    else:
        printing.table(
            ("name", "epoch", "keys of state", "who", "when", "why", "imported"),
            [
                (
                    one.name, one.epoch_id, printing.number(sum(state.keys for state in one.states.values())),
                    one.made_by, one.made_at, one.reason, one.imported_at,
                )
                for one in found
            ],
        )  # fmt: skip


def janitor(
    stale_after: Annotated[
        int, typer.Option(min=1, help="End planned epochs whose lease ended this many minutes ago.")
    ] = int(STALE_AFTER.total_seconds() // 60),
    connection: Annotated[
        str | None, typer.Option(help="Connection id of one database; those of all declared pipelines if not given.")
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Drop staging that no attempt needs, end abandoned epochs, report tables that no attempt explains.

    Safe at any time: epochs with a live lease, and sealed epochs, are left alone. Exit code 0: success, even if there
    was nothing to do; 1: a database cannot be reached, or a declaration is broken, and the databases of the others are
    tidied; 2: wrong use.
    """
    from epochline.cli import connections
    from epochline.config import discovery
    from epochline.config.connections import POSTGRES

    declared = discovery.look() if connection is None else discovery.Declared(pipelines={}, broken=())
    named = {one.postgres_connection for one in declared.pipelines.values()}
    found = {}
    for one in sorted({connection} if connection else named or {POSTGRES}):
        ledger = connections.adapters().ledger(one)
        found[one] = tidy(ledger, run_of_terminal(), stale_after=timedelta(minutes=stale_after))
    if as_json:
        printing.say(printing.as_json({one: asdict(tidied) for one, tidied in found.items()}))
    for one, tidied in found.items() if not as_json else ():
        for line in tidied.lines():
            printing.say(f"{one}: {line}")
    printing.broken(declared.broken)
    if declared.broken:
        raise typer.Exit(1)


def run_of_terminal() -> Run:
    """A run that stands for this terminal."""
    return Run(dag_id="operator", run_id=actor(), host=socket.gethostname())


def subject_of(pipeline: str, connection: str | None) -> Subject:
    """The pipeline to act on, by its declaration; by the database alone if the pipeline is no longer declared.

    Says on standard error if the declaration is in a file that is left out, such as an example that is not enabled.
    """
    from epochline.cli import connections
    from epochline.config import discovery
    from epochline.config.connections import POSTGRES

    try:
        declared = discovery.find(pipeline)
    except (ConfigurationError, DeclarationError):
        left_out = discovery.why_left_out(pipeline)
        if left_out is not None:
            printing.progress(left_out)
        return Subject(name=pipeline, ledger=connections.adapters().ledger(connection or POSTGRES))
    hosted = connections.adapters()
    ledger = hosted.ledger(declared if connection is None else connection)
    return Subject(name=pipeline, ledger=ledger, declared=declared, source=hosted.offsets(declared))


def actor() -> str:
    """User and host of this terminal."""
    return f"{_user()}@{socket.gethostname()}"


def _command(action: Action[Any, Any]) -> Any:
    def command(**given: Any) -> None:
        _run(action, **given)

    # Typer reads a signature: the action's parameters stand between the pipeline and the options of every command.
    arguments: list[inspect.Parameter] = []
    options: list[inspect.Parameter] = []
    for name, field in action.parameters.model_fields.items():
        (arguments if _is_argument(field) else options).append(_parameter(name, field))
    parameters = [
        _named("pipeline", str, typer.Argument(help="The pipeline's name.")),
        *arguments,
        *options,
        _named("reason", str, typer.Option(help="Kept in the ledger.")),
        _named("yes", bool, typer.Option("--yes", "-y", help="Act without asking."), False),
        _named(
            "connection",
            str | None,
            typer.Option(help="Connection id of the database; the pipeline's own if not given."),
            None,
        ),
        _named("as_json", bool, typer.Option("--json", help="For programs: the ledger's row."), False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _named(name: str, kind: Any, info: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default)


def _is_argument(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("argument"))


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    least: Any = next((one.ge for one in field.metadata if isinstance(one, Ge)), None)
    default = inspect.Parameter.empty if field.is_required() else field.default
    if _is_argument(field):
        info: Any = typer.Argument(help=field.description, min=least)
    elif field.annotation is bool:
        info = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
    else:
        info = typer.Option(help=field.description, min=least)
    return _named(name, field.annotation, info, default)


def _run(
    action: Action[Any, Any], *, pipeline: str, reason: str, yes: bool, connection: str | None, as_json: bool,
    **parameters: Any,
) -> None:  # fmt: skip
    if not reason.strip():
        raise typer.BadParameter("say why: the reason is kept in the ledger", param_hint="--reason")
    subject, parsed = subject_of(pipeline, connection), action.parse(parameters)
    _show(action.preview(subject, parsed), quiet=as_json and yes)
    if not yes and not typer.confirm(f"{action.name.capitalize()}?", err=as_json):
        printing.say("nothing was changed")
        raise typer.Exit(1)
    request = Request(actor=actor(), reason=reason)
    if isinstance(action, EpochAction):
        _run_epochs(action, subject, parsed, request, as_json=as_json)
    elif isinstance(action, DirectAction):
        done = action.act(subject, parsed, request)
        if as_json:
            printing.say(printing.as_json(asdict(done.row)))
            return
        for line in done.lines:
            printing.say(line)


def _run_epochs(
    action: EpochAction[Any, Any], subject: Subject, parsed: Any, request: Request, *, as_json: bool
) -> None:
    """Plan, stage and commit in this process until the action is complete."""
    from epochline.cli.execution import Execution
    from epochline.cli.run import as_dict

    declared, _ = subject.declaration()
    committed = []
    with Execution(
        declared, planned_by=lambda run, writers: action.plan(subject, parsed, request, run, writers=writers)
    ) as execution:
        while (result := execution.next_epoch()) is not None:
            committed.append(result)
            if not as_json:
                printing.say(str(result))
            if not action.repeats or action.preview(subject, parsed).refusal is not None:
                break
    if as_json:
        printing.say(printing.as_json([as_dict(result.epoch) for result in committed]))


def _show(preview: ActionPreview, *, quiet: bool) -> None:
    for line in preview.lines if not quiet else ():
        printing.say(line)
    if preview.refusal is not None:
        raise ActionRefusedError(f"{preview.refusal} Nothing was changed.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # accounts in containers may have no name
        return str(os.getuid())
