"""`epochline ledger`: the last epochs, or one epoch in full."""

from collections.abc import Callable, Iterator, Set
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer

from epochline.cli import connections, database, printing
from epochline.cli.database import Row, Session
from epochline.cli.options import (
    AsJson,
    Follow,
    OwnConnection,
    declared_pipelines,
    refresh,
    refuse_with_follow,
)
from epochline.config.connections import POSTGRES
from epochline.errors import ConfigurationError, EpochlineError, EpochNotFoundError
from epochline.protocol.quantities import counted
from epochline.protocol.standing import standing_of_epoch

_PHASES = ("wait", "plan", "start", "stage", "seal", "commit", "publish")


def ledger(
    pipeline: Annotated[
        str | None, typer.Argument(help="One pipeline; all if not given.", autocompletion=declared_pipelines)
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=1, help="One epoch: its phases, ranges, attempts and quarantine.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many epochs, the newest first.")] = 20,
    connection: OwnConnection = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Show the last epochs of the ledger, or with --epoch one epoch in full.

    Changes nothing. Exit code 0: success, even if the list is empty; 1: there is no such pipeline or epoch, or the
    ledger cannot be read; 2: wrong use; 130: Ctrl-C ended --follow.
    """
    if epoch is not None and pipeline is None:
        raise typer.BadParameter("epoch ids count per pipeline: name the pipeline, as in `ledger access_log --epoch 3`")
    if follow:
        refuse_with_follow(json=as_json)
    dsn = connections.adapters().postgres_dsn(connection or connection_of(pipeline))
    with database.session(dsn) as session:
        if follow:
            refresh(lambda: _look(session, pipeline, epoch, limit, as_json=False))
        _look(session, pipeline, epoch, limit, as_json=as_json)()


def _look(ledger: Session, pipeline: str | None, epoch: int | None, limit: int, *, as_json: bool) -> Callable[[], None]:
    """Ask the ledger; returns what prints the answer."""
    epochs = database.ask(ledger, "last_epochs", pipeline=pipeline, epoch=epoch, limit=limit)
    if not epochs and pipeline is not None:
        check_known(pipeline, {row["pipeline"] for row in database.ask(ledger, "pipelines")})
    if epoch is None:
        return partial(printing.say, printing.as_json(epochs)) if as_json else partial(show_epochs, epochs)
    if not epochs:
        raise EpochNotFoundError(f"the ledger has no epoch {epoch} of a pipeline {pipeline!r}.")
    (phases,) = database.ask(ledger, "phases_of_epoch", pipeline=pipeline, epoch=epoch)
    whole = {
        **epochs[0],
        **phases,
        "ranges": database.ask(ledger, "ranges_of_epoch", pipeline=pipeline, epoch=epoch),
        "attempts": database.ask(ledger, "page_attempts", pipeline=pipeline, epoch_id=epoch, limit=None)[::-1],
        "records_in_quarantine": database.ask(ledger, "quarantined_of_epoch", pipeline=pipeline, epoch=epoch)[0][
            "records"
        ],
    }
    (standing,) = database.ask(ledger, "page_epoch", pipeline=pipeline, epoch_id=epoch)
    return partial(printing.say, printing.as_json(whole)) if as_json else partial(_show_one, whole, next_step(standing))


def check_known(pipeline: str, in_ledger: Set[str]) -> None:
    """Refuse a name that neither the ledger nor a declaration knows."""
    from epochline.config import discovery

    try:
        pipelines = sorted({*in_ledger, *discovery.look().pipelines})
    except ConfigurationError:
        pipelines = sorted(in_ledger)
    if pipeline not in pipelines and (left_out := discovery.why_left_out(pipeline)) is not None:
        raise EpochNotFoundError(left_out)
    if pipeline not in pipelines:
        meant = "".join(f" Did you mean {name}?" for name in get_close_matches(pipeline, pipelines, n=1))
        raise EpochNotFoundError(
            f"neither the ledger nor a declaration knows a pipeline {pipeline!r}.{meant} Known:"
            f" {', '.join(pipelines) or 'none'}."
        )


def connection_of(pipeline: str | None) -> str:
    """The connection id that a declared pipeline names; the default one if the pipeline is no longer declared."""
    if pipeline is None:
        return POSTGRES
    from epochline.config import discovery  # The default connection needs no declaration.

    try:
        return discovery.find(pipeline).postgres_connection
    except EpochlineError:
        return POSTGRES


def next_step(row: Row) -> str | None:
    """What becomes of an epoch, by its row of ``page_epoch``, and the command that goes on; None if committed."""
    return None if row["state"] == "COMMITTED" else str(standing_of_epoch(row))


def counts_of(row: Row) -> list[int | None]:
    """How many records were read, passed, skipped and quarantined."""
    return [row[f"records_{name}"] for name in ("read", "passed", "skipped", "quarantined")]


def show_epochs(epochs: list[dict[str, Any]]) -> None:
    """Print epochs as a table, with notes and errors below it."""
    if not epochs:
        printing.say("the ledger holds no epoch yet")
        return
    columns = "pipeline epoch state attempt read passed skipped quarantined rows planned took latency"
    charted = printing.console().is_terminal
    printing.table(
        [*columns.split(), *[""] * charted],
        [
            (
                epoch["pipeline"], epoch["epoch_id"], epoch["state"], epoch["attempt"],
                *map(printing.number, counts_of(epoch)), printing.number(epoch["rows_written"]), epoch["planned_at"],
                printing.duration(epoch["seconds"]), printing.duration(epoch["longest_latency_seconds"]),
                *[bar] * charted,
            )
            for epoch, bar in zip(epochs, printing.bars([epoch["seconds"] for epoch in epochs]), strict=True)
        ],
        least=("", "skipped", "attempt", "passed", "latency", "rows", "took"),
    )  # fmt: skip
    for epoch in epochs:
        for note in _of_epoch(epoch):
            printing.say(f"epoch {epoch['epoch_id']} of {epoch['pipeline']}: {note}")


def _of_epoch(epoch: dict[str, Any]) -> Iterator[str]:
    if epoch["kind"] != "regular":
        yield f"of kind {epoch['kind']}"
    if epoch["replays"] is not None:
        yield f"reads epoch {epoch['replays']} again"
    if epoch["undone_by"] is not None:
        yield f"undone by epoch {epoch['undone_by']}; its rows are gone"
    if epoch["records_too_late"]:
        yield f"{counted(epoch['records_too_late'], 'record')} came too late for their windows"
    if epoch["error"]:
        yield epoch["error"]


def _show_one(epoch: Row, advice: str | None) -> None:
    show_epochs([epoch])
    printing.say(f"planned by run {epoch['run_id']} of {epoch['dag_id']}")
    if epoch["watermark"] is not None:
        printing.say(f"watermark: {printing.text(epoch['watermark'])}")
    passed = {name: epoch[f"{name}_seconds"] for name in _PHASES if epoch[f"{name}_seconds"]}
    if passed and printing.console().is_terminal:
        charted = zip(passed, passed.values(), printing.bars([*passed.values()], 30), strict=True)
        printing.table(("phase", "took", ""), [(name, printing.duration(took), bar) for name, took, bar in charted])
    elif passed:
        printing.say(f"phases: {', '.join(f'{name} {printing.duration(took)}' for name, took in passed.items())}")
    if epoch["longest_latency_seconds"] is not None:
        oldest, newest = (printing.duration(epoch[f"{name}_latency_seconds"]) for name in ("longest", "shortest"))
        printing.say(f"age at the commit, by Kafka's timestamps: {oldest} of the oldest record, {newest} of the newest")
    if epoch["note"]:
        printing.say(f"note: {epoch['note']}")
    if epoch["settings"]:
        printing.say(f"settings: {', '.join(_chosen(epoch['settings']))}")
    printing.say()
    printing.table(
        ("topic", "partition", "range", "read", "passed", "skipped", "quarantined"),
        [
            (
                row["topic"], row["partition"], f"[{row['start_offset']}, {row['until_offset']})",
                *map(printing.number, counts_of(row)),
            )
            for row in epoch["ranges"]
        ],
    )  # fmt: skip
    printing.say()
    show_attempts(epoch["attempts"])
    printing.say(f"records kept in the quarantine: {printing.number(epoch['records_in_quarantine'])}")
    if advice is not None:
        printing.say(advice)


def _chosen(settings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Recorded settings that are not the default, with the place that set each, and the record limit in any case."""
    for name, setting in sorted(settings.items()):
        if setting["from"] != "default" or name == "record_limit":
            yield f"{name} {'none' if setting['value'] is None else setting['value']} ({setting['from']})"


def show_attempts(attempts: list[dict[str, Any]]) -> None:
    """Print attempts as a table, with their errors below it."""
    printing.table(
        ("attempt", "state", "host", "started", "ended", "rows staged", "fenced writes"),
        [
            (
                attempt["attempt"], attempt["state"], attempt["host"], attempt["started_at"], attempt["ended_at"],
                printing.number(attempt["rows_staged"]), printing.number(attempt["fenced_writes"]),
            )
            for attempt in attempts
        ],
        least=("host", "ended"),
    )  # fmt: skip
    for attempt in attempts:
        if attempt["error"]:
            printing.say(f"attempt {attempt['attempt']}: {attempt['error']}")
