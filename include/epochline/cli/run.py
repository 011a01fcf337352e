"""`epochline run` and `epochline publish`: the use cases of Airflow's tasks, in this process."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from epochline.cli import connections, printing
from epochline.cli.execution import Execution
from epochline.cli.options import Name
from epochline.config import discovery
from epochline.config.shared_tables import find_alone
from epochline.coordinator import PlanOutcome
from epochline.coordinator import publish as publish_due
from epochline.protocol.epoch import Epoch, Interval
from epochline.protocol.quantities import counted


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
    committed = []
    with Execution(find_alone(pipeline), master, note=note, interval=interval) as execution:
        while (result := execution.next_epoch(max_records)) is not None:
            committed.append(result)
            if not as_json:
                printing.say(str(result))
            if not until_caught_up:
                break
    if as_json:
        printing.say(printing.as_json([as_dict(result.epoch) for result in committed]))
    elif execution.found is PlanOutcome.COVERED:
        printing.say(f"{pipeline}: the interval is committed already; no epoch was written")
    elif execution.found is PlanOutcome.SINKS_FULL:
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
        start, end = (_time(text) for text in (since, until))
        return Interval(start=start, until=end)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from and --to") from None


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_dict(epoch: Epoch) -> dict[str, Any]:
    """A committed epoch, for programs."""
    counts = epoch.counts
    return {
        "pipeline": epoch.pipeline,
        "epoch_id": epoch.epoch_id,
        "state": str(epoch.state),
        "records_read": counts.read,
        "records_passed": counts.passed,
        "records_skipped": counts.skipped,
        "records_quarantined": counts.quarantined,
        "rows_written": epoch.rows_written,
        "committed_at": epoch.committed_at,
    }


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
    published = publish_due(ledger, declared, report=lambda one: None if as_json else printing.say(str(one)))
    if as_json:
        for receipt in published:
            printing.say(printing.as_json(asdict(receipt)))
    elif not published:
        printing.say(f"{pipeline}: every sink shows every committed epoch")
