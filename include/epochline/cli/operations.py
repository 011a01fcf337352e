"""Operators' actions as commands: one per row of `epochline.operations.ACTIONS`, and lists of actions and savepoints.

Each command prints the preview, asks, acts, and prints the outcome. The use cases decide; this module does not.
"""

import getpass
import inspect
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from annotated_types import Ge
from pydantic.fields import FieldInfo

from epochline.cli import connections, printing
from epochline.cli.options import AsJson, Name, OwnConnection
from epochline.config import discovery
from epochline.config.connections import POSTGRES
from epochline.coordinator import Plan
from epochline.declare.pipeline import Pipeline
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
from epochline.ports import Parsed, StoredRecord
from epochline.protocol.changes import words
from epochline.protocol.epoch import Run

_EXIT_CODES = (
    "Exit code 0: done and written to the ledger; 1: refused, see the message, or not confirmed; 2: wrong use."
)


def __getattr__(name: str) -> Callable[..., None]:
    """The command of an action, by the action's name with ``_`` for each dash."""
    if name.replace("_", "-") not in ACTIONS:
        raise AttributeError(name)
    return _command(ACTIONS[name.replace("_", "-")])


def actions(pipeline: Name, connection: OwnConnection = None, as_json: AsJson = False) -> None:
    """Show operators' actions on PIPELINE, the newest last: who, when, why, and the values before and after.

    Changes nothing. Exit code 0: success, even if the list is empty; 1: the ledger cannot be read; 2: wrong use.
    """
    with subject_of(pipeline, connection).ledger.transaction() as tx:
        rows = tx.operators.actions(pipeline)
    _list(
        rows,
        f"no operator has acted on {pipeline}",
        ("action", "epoch", "who", "when", "why", "before", "after"),
        lambda row: (
            row.action, row.epoch_id, row.actor, row.acted_at, row.reason, words(row.before), words(row.after),
        ),
        as_json=as_json,
    )  # fmt: skip


def savepoints(pipeline: Name, connection: OwnConnection = None, as_json: AsJson = False) -> None:
    """Show the savepoints of PIPELINE: epoch, size of the state, author, time and reason.

    Changes nothing. Exit code 0: success, even if the list is empty; 1: the ledger cannot be read; 2: wrong use.
    """
    with subject_of(pipeline, connection).ledger.transaction() as tx:
        rows = tx.savepoints.of(pipeline)
    _list(
        rows,
        f"{pipeline} has no savepoint",
        ("name", "epoch", "keys of state", "who", "when", "why", "imported"),
        lambda row: (
            row.name, row.epoch_id, printing.number(sum(state.keys for state in row.states.values())),
            row.made_by, row.made_at, row.reason, row.imported_at,
        ),
        as_json=as_json,
    )  # fmt: skip


def _list(
    rows: Sequence[Any], nothing: str, columns: Sequence[str], cells: Callable[[Any], Sequence[Any]], *, as_json: bool
) -> None:
    if as_json:
        printing.say(printing.as_json([asdict(row) for row in rows]))
    elif not rows:
        printing.say(nothing)
    else:
        printing.table(columns, map(cells, rows))


def janitor(
    stale_after: Annotated[
        int, typer.Option(min=1, help="End planned epochs whose lease ended this many minutes ago.")
    ] = int(STALE_AFTER.total_seconds() // 60),
    connection: Annotated[
        str | None, typer.Option(help="Connection id of one database; those of all declared pipelines if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Drop staging that no attempt needs, end abandoned epochs, and report staging tables without an attempt.

    Safe at any time: does not touch epochs with a live lease, or sealed epochs. Exit code 0: success, even if there was
    nothing to do; 1: a database cannot be reached, or a declaration is broken, and the other databases are tidied;
    2: wrong use.
    """
    declared = discovery.look() if connection is None else discovery.Declared(pipelines={}, broken=())
    databases = {pipeline.postgres_connection for pipeline in declared.pipelines.values()}
    run = Run(dag_id="operator", run_id=actor(), host=socket.gethostname())
    tidied = {
        database: tidy(connections.adapters().ledger(database), run, stale_after=timedelta(minutes=stale_after))
        for database in sorted({connection} if connection else databases or {POSTGRES})
    }
    if as_json:
        printing.say(printing.as_json({database: asdict(report) for database, report in tidied.items()}))
    else:
        for database, report in tidied.items():
            for line in report.lines():
                printing.say(f"{database}: {line}")
    printing.broken(declared.broken)
    if declared.broken:
        raise typer.Exit(1)


def subject_of(pipeline: str, connection: str | None) -> Subject:
    """The pipeline to act on, by its declaration; by the database alone if the pipeline is no longer declared.

    Says on standard error if the declaration is in a file that is left out, such as an example that is not enabled.
    """
    try:
        declared = discovery.find(pipeline)
    except (ConfigurationError, DeclarationError):
        left_out = discovery.why_left_out(pipeline)
        if left_out is not None:
            printing.progress(left_out)
        return Subject(name=pipeline, ledger=connections.adapters().ledger(connection or POSTGRES))
    adapters = connections.adapters()
    ledger = adapters.ledger(declared if connection is None else connection)
    source = adapters.offsets(declared)
    return Subject(name=pipeline, ledger=ledger, declared=declared, source=source, parse=_parse)


def _parse(pipeline: Pipeline, records: Sequence[StoredRecord]) -> Parsed:
    from epochline.audit.preview import parse_again

    return parse_again(pipeline, records)


def actor() -> str:
    """User and host of this terminal."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # accounts in containers may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _command(action: Action[Any, Any]) -> Callable[..., None]:
    def command(**options: Any) -> None:
        _run(action, **options)

    # Typer reads a signature: the action's parameters stand between the pipeline and the options of every command.
    fields = sorted(action.parameters.model_fields.items(), key=lambda item: not _is_argument(item[1]))
    parameters = [
        _keyword("pipeline", Name),
        *(_parameter(name, field) for name, field in fields),
        _keyword("reason", Annotated[str, typer.Option(help="Kept in the ledger.")]),
        _keyword("yes", Annotated[bool, typer.Option("--yes", "-y", help="Act without asking.")], False),
        _keyword("connection", OwnConnection, None),
        _keyword("as_json", Annotated[bool, typer.Option("--json", help="For programs: the ledger's row.")], False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = f"{action.help}\n\n{_EXIT_CODES}"
    return command


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _is_argument(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("argument"))


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    least: Any = next((rule.ge for rule in field.metadata if isinstance(rule, Ge)), None)
    if _is_argument(field):
        info: Any = typer.Argument(help=field.description, min=least)
    elif field.annotation is bool:
        info = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
    else:
        info = typer.Option(help=field.description, min=least)
    default = inspect.Parameter.empty if field.is_required() else field.default
    return _keyword(name, Annotated[field.annotation, info], default)


def _run(
    action: Action[Any, Any], *, pipeline: str, reason: str, yes: bool, connection: str | None, as_json: bool,
    **parameters: Any,
) -> None:  # fmt: skip
    if not reason.strip():
        raise typer.BadParameter("say why: the reason is kept in the ledger", param_hint="--reason")
    subject, parsed = subject_of(pipeline, connection), action.parse(parameters)
    preview = action.preview(subject, parsed)
    for line in preview.lines if not (as_json and yes) else ():
        printing.say(line)
    if preview.refusal is not None:
        raise ActionRefusedError(f"{preview.refusal} Nothing was changed.")
    if not yes and not typer.confirm(f"{action.name.capitalize()}?", err=as_json):
        printing.say("nothing was changed")
        raise typer.Exit(1)
    request, parsed = Request(actor=actor(), reason=reason), action.pinned(parsed, preview)
    # Who answers a question may have taken minutes. A program that says yes beforehand agrees to what is found.
    confirmed = None if yes else preview
    if isinstance(action, EpochAction):
        _run_epochs(action, subject, parsed, request, confirmed, as_json=as_json)
    elif isinstance(action, DirectAction):
        done = action.act(subject, parsed, request, confirmed=confirmed)
        printing.say(printing.as_json(asdict(done.row)) if as_json else "\n".join(done.lines))


def _run_epochs(
    action: EpochAction[Any, Any], subject: Subject, parsed: Any, request: Request, confirmed: ActionPreview | None, *,
    as_json: bool,
) -> None:  # fmt: skip
    """Plan, stage and commit in this process until the action is complete.

    The first epoch must be what was ``confirmed``; further ones go on where it ended.
    """
    from epochline.cli.execution import Execution

    declared, _ = subject.declaration()
    agreed = [confirmed]

    def plan(run: Run, writers: int | None) -> Plan:
        first = agreed.pop() if agreed else None
        return action.plan(subject, parsed, request, run, writers=writers, confirmed=first)

    with Execution(declared, plan) as execution:
        execution.epochs(
            (lambda: action.preview(subject, parsed).refusal is None) if action.repeats else None, as_json=as_json
        )
