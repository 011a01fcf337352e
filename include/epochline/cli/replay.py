"""`epochline replay`: read a committed epoch again with today's code, and compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochline.cli import printing

if TYPE_CHECKING:
    from epochline.ports import TableDifference

DIFFERENT = 1


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay")(replay)


def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    epoch: Annotated[int, typer.Option(min=1, help="Id of the committed epoch.")],
    promote: Annotated[
        bool, typer.Option("--promote", help="Replace the epoch by the replay, in one transaction.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Required with --promote; kept in the ledger.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Promote without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Read the ranges of a committed epoch of PIPELINE again with today's code, and compare with what it committed.

    The rows are staged and then discarded. With --promote, the replay's rows replace the epoch's rows in the target,
    and the ledger keeps both epochs. Only for targets of mode append, without state. Exit code 0: no difference, or
    promoted; 1: there are differences, or the replay was refused; 2: wrong use.
    """
    from epochline.cli.execution import Execution
    from epochline.cli.operations import actor, subject_of
    from epochline.operations.action import Request
    from epochline.operations.replay import differences, plan_replay
    from epochline.operations.replay import promote as supersede

    if promote and not (reason or "").strip():
        raise typer.BadParameter("say why: the reason is kept in the ledger", param_hint="--reason")
    subject = subject_of(pipeline, None)
    declared, _ = subject.declaration()
    with (
        Execution(
            declared, planned_by=lambda run, writers: plan_replay(subject, epoch, run, writers=writers)
        ) as execution,
        execution.staged() as staged,
    ):
        found = differences(subject, staged)
        _show(found, as_json=as_json)
        different = any(one.inserted or one.deleted or one.changed for one in found)
        if promote and (yes or typer.confirm("Promote?", err=as_json)):
            result = supersede(subject, staged, Request(actor=actor(), reason=reason or ""))
            if not as_json:
                printing.say(f"{result}; it takes the place of epoch {epoch}")
            return
    if not as_json:
        printing.say(f"epoch {epoch} of {pipeline} stays as it is")
    if different:
        raise typer.Exit(DIFFERENT)


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        printing.say(printing.as_json([asdict(one) for one in found]))
        return
    for one in found:
        printing.say(_counts(one))
        for row in one.samples:
            topic, partition, offset, number = row.place
            printing.say(
                f"  {row.kind}: {topic}-{partition} offset {offset} row {number}: {_values(row.before, row.after)}"
            )
        left = one.inserted + one.deleted + one.changed - len(one.samples)
        if left:
            printing.say(f"  and {printing.number(left)} more")


def _counts(one: TableDifference) -> str:
    kinds = {"inserted": one.inserted, "deleted": one.deleted, "changed": one.changed, "the same": one.same}
    return f"{one.table}: {', '.join(f'{printing.number(count)} {kind}' for kind, count in kinds.items())}"


def _values(before: Any, after: Any) -> str:
    if before and after:
        return ", ".join(f"{name} {before[name]!r} → {after[name]!r}" for name in before)
    return ", ".join(f"{name} {value!r}" for name, value in (before or after).items())
