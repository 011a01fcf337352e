"""`epochline lag`: how far each partition is behind."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from epochline.errors import EpochlineError
from epochline.pipeline import Pipeline

TOO_FAR_BEHIND = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("lag")(lag)


def lag(
    pipeline: Annotated[str | None, typer.Argument(help="One pipeline; every declared one if not given.")] = None,
    fail_above: Annotated[
        int | None, typer.Option(min=0, help="Exit with 3 if a pipeline is more records than this behind.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show per partition the head, the end of the log, the records between, and when something was last committed.

    The end is the last stable offset: what can be read now. Exit code 0: shown; 1: Kafka or the ledger cannot be
    asked for one of them, and the others are shown; 2: there is no such pipeline; 3: a pipeline is further behind than
    --fail-above.
    """
    from epochline.cli import pipelines, printing

    declared = pipelines.find_all() if pipeline is None else {pipeline: pipelines.find(pipeline)}
    rows, errors = [], {}
    for name, one in declared.items():
        try:
            rows += lag_of(one)
        except EpochlineError as error:
            if pipeline is not None:
                raise
            errors[name] = error
    if as_json:
        printing.say(printing.as_json(rows))
    else:
        printing.table(
            ("pipeline", "topic", "partition", "head", "end", "lag", "last commit"),
            [
                (
                    row["pipeline"],
                    row["topic"],
                    row["partition"],
                    row["head"],
                    row["end"],
                    row["lag"],
                    _ago(row["seconds_since_commit"]),
                )
                for row in rows
            ],
        )
    asked = [name for name in declared if name not in errors]
    behind = {name: sum(row["lag"] for row in rows if row["pipeline"] == name) for name in asked}
    if not as_json:
        for name, records in behind.items():
            printing.say(f"{name}: {records} records behind" if records else f"{name}: caught up")
    for name, reason in errors.items():
        printing.progress(f"{name}: cannot be asked: {reason}")
    if errors:
        raise typer.Exit(1)
    if fail_above is not None and any(records > fail_above for records in behind.values()):
        raise typer.Exit(TOO_FAR_BEHIND)


def _ago(seconds: float | None) -> str:
    from epochline.cli import printing

    return "-" if seconds is None else f"{printing.duration(seconds)} ago"


def lag_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    """One row per partition; a partition that the ledger does not know yet has the head where it would begin."""
    from epochline.cli.connections import ledger_of, offsets_of, postgres_dsn
    from epochline.cli.database import ask, session
    from epochline.coordinator import ask_startup, origins_of

    with session(postgres_dsn(pipeline.postgres_connection)) as opened:
        heads = {(row["topic"], row["partition"]): row for row in ask(opened, "heads", pipeline=pipeline.name)}
    source = offsets_of(pipeline)
    view = source.look(pipeline.source)
    with ledger_of(pipeline).transaction() as tx:
        row = tx.epochs.pipeline(pipeline.name)
        known = tx.chain.heads(pipeline.name, row.generation) if row is not None else ()
    begun = origins_of(pipeline, known, view, ask_startup(source, pipeline, known, view))
    origins = {(one.tp.topic, one.tp.partition): one.offset for one in begun}
    rows = []
    for one in sorted(view.partitions, key=lambda each: each.tp):
        head = heads.get((one.tp.topic, one.tp.partition))
        at = head["next_offset"] if head else origins[one.tp.topic, one.tp.partition]
        committed = head is not None and head["epoch_id"] is not None
        rows.append(
            {
                "pipeline": pipeline.name,
                "topic": one.tp.topic,
                "partition": one.tp.partition,
                "head": at,
                "end": one.last_stable,
                "lag": max(0, one.last_stable - at),
                "seconds_since_commit": head["seconds"] if head and committed else None,
            }
        )
    return rows
