"""`epochline replay`: a committed epoch once more, with today's code, beside what it committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from epochline.ports import TableDifference

DIFFERENT = 1


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay")(replay)


def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    epoch: Annotated[int, typer.Option(min=1, help="Which committed epoch.")],
    promote: Annotated[
        bool, typer.Option("--promote", help="Let the replay take the epoch's place, in one transaction.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Why; needed with --promote, and kept in the ledger.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a promotion.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Read the ranges of a committed epoch of PIPELINE again with today's code, and compare with what it committed.

    The rows go to staging, and from there nowhere, unless --promote lets them take the place of the epoch's: then its
    rows leave the target, the replay's come, and the ledger keeps both. For targets of mode append, without state.
    Exit code 0: no difference, or promoted; 1: there are differences, or it was refused; 2: wrong use.
    """
    from epochline.cli import printing
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
            receipt = supersede(subject, staged, Request(actor=actor(), reason=reason or ""))
            if not as_json:
                printing.say(f"{receipt}; it takes the place of epoch {epoch}")
            return
    if not as_json:
        printing.say(f"epoch {epoch} of {pipeline} stays as it is")
    if different:
        raise typer.Exit(DIFFERENT)


def _show(found: Any, *, as_json: bool) -> None:
    from dataclasses import asdict

    from epochline.cli import printing

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
            printing.say(f"  and {left} more")


def _counts(one: TableDifference) -> str:
    said = f"{one.inserted} inserted, {one.deleted} deleted, {one.changed} changed, {one.same} the same"
    return f"{one.table}: {said}"


def _values(before: Any, after: Any) -> str:
    if before and after:
        return ", ".join(f"{name} {before[name]!r} → {after[name]!r}" for name in before)
    return ", ".join(f"{name} {value!r}" for name, value in (before or after).items())
