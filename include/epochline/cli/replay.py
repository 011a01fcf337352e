"""`epochline replay`: read a committed epoch again with today's code, and compare."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from epochline.cli import printing
from epochline.cli.execution import Execution
from epochline.cli.operations import actor, subject_of
from epochline.cli.options import AsJson, Name
from epochline.operations import Request
from epochline.operations.replay import differences, plan_replay
from epochline.operations.replay import promote as supersede
from epochline.ports import TableDifference

DIFFERENT = 1


def replay(
    pipeline: Name,
    epoch: Annotated[int, typer.Option(min=1, help="Id of the committed epoch.")],
    promote: Annotated[
        bool, typer.Option("--promote", help="Replace the epoch by the replay, in one transaction.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Required with --promote; kept in the ledger.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Promote without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read the ranges of a committed epoch of PIPELINE again with today's code, and compare the rows.

    The rows are staged and then discarded. With --promote, the replay's rows replace the epoch's rows in the target,
    and the ledger keeps both epochs. Only for targets of mode append, without state. Exit code 0: no difference, or
    promoted; 1: there are differences, or the replay was refused; 2: wrong use.
    """
    if promote and not (reason or "").strip():
        raise typer.BadParameter("say why: the reason is kept in the ledger", param_hint="--reason")
    subject = subject_of(pipeline, None)
    declared, _ = subject.declaration()
    planned = Execution(declared, planned_by=lambda run, writers: plan_replay(subject, epoch, run, writers=writers))
    with planned as execution, execution.staged() as staged:
        tables = differences(subject, staged)
        _show(tables, as_json=as_json)
        different = any(table.inserted or table.deleted or table.changed for table in tables)
        if promote and (yes or typer.confirm("Promote?", err=as_json)):
            result = supersede(subject, staged, Request(actor=actor(), reason=reason or ""))
            if not as_json:
                printing.say(f"{result}; it takes the place of epoch {epoch}")
            return
    if not as_json:
        printing.say(f"epoch {epoch} of {pipeline} stays as it is")
    if different:
        raise typer.Exit(DIFFERENT)


def _show(tables: Sequence[TableDifference], *, as_json: bool) -> None:
    if as_json:
        printing.say(printing.as_json([asdict(table) for table in tables]))
        return
    for table in tables:
        kinds = {"inserted": table.inserted, "deleted": table.deleted, "changed": table.changed, "the same": table.same}
        counts = ", ".join(f"{printing.number(count)} {kind}" for kind, count in kinds.items())
        printing.say(f"{table.table}: {counts}")
        for row in table.samples:
            topic, partition, offset, number = row.place
            printing.say(
                f"  {row.kind}: {topic}-{partition} offset {offset} row {number}: {_values(row.before, row.after)}"
            )
        left = table.inserted + table.deleted + table.changed - len(table.samples)
        if left:
            printing.say(f"  and {printing.number(left)} more")


def _values(before: Any, after: Any) -> str:
    if before and after:
        return ", ".join(f"{name} {before[name]!r} → {after[name]!r}" for name in before)
    return ", ".join(f"{name} {value!r}" for name, value in (before or after).items())
