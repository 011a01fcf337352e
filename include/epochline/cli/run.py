"""`epochline run`, `publish` and `replay`: the use cases of Airflow's tasks, in this process."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from epochline.cli import connections, printing
from epochline.cli.execution import Execution
from epochline.cli.operations import actor, subject_of
from epochline.cli.options import AsJson, Name
from epochline.config import discovery
from epochline.config.resolve import file_settings, resolve_settings
from epochline.config.shared_tables import find_alone
from epochline.coordinator import Plan, PlanOutcome, PlanRequest, plan
from epochline.coordinator import publish as publish_due
from epochline.operations import Request
from epochline.operations.replay import differences, plan_replay
from epochline.operations.replay import promote as supersede
from epochline.ports import TableDifference
from epochline.protocol.epoch import Interval, Run, moment_of
from epochline.protocol.quantities import counted

DIFFERENT = 1


def run(
    pipeline: Name,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up/--once", help="Run epochs until nothing is left to read, or only one.")
    ] = False,
    max_records: Annotated[int | None, typer.Option(min=1, help="Most offsets that an epoch reads.")] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master; if not given, from the Spark connection, or local[*].")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Kept with each epoch.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start of an interval, in ISO 8601; UTC if without a zone."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End of the interval; the epoch reads nothing after it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one object per committed epoch.")] = False,
) -> None:
    """Run epochs of PIPELINE here, without Airflow: plan, stage with Spark, seal, commit.

    First recovers unfinished epochs of earlier runs. The lease of a killed run lasts a minute at most; this run waits
    until it ends. If a target refuses records and the policy is 'quarantine', the epoch is staged again without them.
    On an error or Ctrl-C the epoch is aborted, and the next run reads its range again. With --from and --to the run is
    a backfill: the epoch ends with the last record before the interval's end, even beyond the declared limit, and
    committed offsets are not read again. Exit code 0: committed, or nothing to read; 1: failed, the message says what
    is left; 2: wrong use, an invalid declaration, or a table that another pipeline names; 130: interrupted.
    """
    interval = _interval(since, until)
    if interval is not None and until_caught_up:
        raise typer.BadParameter("a backfill is one epoch; remove --until-caught-up", param_hint="--from")
    declared = find_alone(pipeline)

    def planned(run: Run, writers: int | None) -> Plan:
        settings = resolve_settings(declared, file=file_settings())
        request = PlanRequest(
            record_limit=max_records, note=note, writers=writers, interval=interval, settings=settings
        )
        adapters = connections.adapters()
        return plan(adapters.ledger(declared), adapters.offsets(declared), declared, run, request)

    with Execution(declared, planned, master) as execution:
        committed = execution.epochs((lambda: True) if until_caught_up else None, as_json=as_json)
    if as_json:
        return
    if execution.outcome is PlanOutcome.COVERED:
        printing.say(f"{pipeline}: the interval is committed already; no epoch was written")
    elif execution.outcome is PlanOutcome.SINKS_FULL:
        printing.say(f"{pipeline}: a sink has too many epochs still to show; the backlog waits in Kafka")
    elif not committed:
        printing.say(f"{pipeline}: nothing to read; no epoch was written")
    elif until_caught_up:
        quarantined = sum(result.epoch.counts.quarantined for result in committed)
        aside = f"; records quarantined: {printing.number(quarantined)}" if quarantined else ""
        printing.say(f"{pipeline}: caught up after {counted(len(committed), 'epoch')}{aside}")


def _interval(since: str | None, until: str | None) -> Interval | None:
    if since is None and until is None:
        return None
    if since is None or until is None:
        raise typer.BadParameter("an interval has two ends; give both", param_hint="--from and --to")
    try:
        start, end = map(moment_of, (since, until))
        return Interval(start=start, until=end)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from and --to") from None


def publish(
    pipeline: Name,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one object per epoch and sink.")] = False,
) -> None:
    """Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet.

    Shows epochs in order, including other runs' epochs. A repeat shows nothing twice. A sink that is down does not
    delay the others; the next call shows its epochs. Exit code 0: every sink shows every committed epoch; 1: a sink is
    down or refuses an epoch, see the message; 2: wrong use.
    """
    declared = discovery.find(pipeline)
    ledger = connections.adapters().ledger(declared)
    published = publish_due(ledger, declared, report=lambda receipt: None if as_json else printing.say(str(receipt)))
    if as_json:
        for receipt in published:
            printing.say(printing.as_json(asdict(receipt)))
    elif not published:
        printing.say(f"{pipeline}: every sink shows every committed epoch")


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
    planned = Execution(declared, lambda run, writers: plan_replay(subject, epoch, run, writers=writers))
    with planned as execution, execution.staged() as staged:
        tables = differences(subject, staged)
        _show_differences(tables, as_json=as_json)
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


def _show_differences(tables: Sequence[TableDifference], *, as_json: bool) -> None:
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
        if unsampled := table.inserted + table.deleted + table.changed - len(table.samples):
            printing.say(f"  and {printing.number(unsampled)} more")


def _values(before: Any, after: Any) -> str:
    if before and after:
        return ", ".join(f"{name} {before[name]!r} → {after[name]!r}" for name in before)
    return ", ".join(f"{name} {value!r}" for name, value in (before or after).items())
