"""`epochline plan`: show what the next epoch would read, without planning it."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from epochline.cli import printing
from epochline.cli.connections import adapters, spark_master
from epochline.cli.database import ask, session
from epochline.cli.options import AsJson, declared_pipelines
from epochline.cli.printing import each
from epochline.config.connections import spark_writers
from epochline.config.resolve import file_settings, resolve_settings
from epochline.config.shared_tables import find_alone
from epochline.coordinator import PlanPreview, PlanRequest, preview
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError
from epochline.protocol.changes import Change, as_last_written, changes
from epochline.protocol.quantities import counted, number


def plan(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PIPELINE...", help="The pipelines' names.", autocompletion=declared_pipelines),
    ],
    max_records: Annotated[int | None, typer.Option(min=1, help="Use this limit instead of the declared one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the next epoch of PIPELINE would read, and how its declaration changed. Changes nothing.

    Makes the checks of a run's plan: targets exist, fit and have the needed rights; declaration and state are those of
    the last epoch; the log is the one that was read; the sinks take an epoch. Two checks need a write, so only a run
    makes them: whether a store of files keeps the first of two entries, and whether the control topic may be created.
    `preview` parses records. With several names, every refused plan is reported, and --json prints a list.

    Exit code 0: the next epochs can be planned, even if they read nothing; 1: a plan would be refused, see the message;
    2: there is no such pipeline, or its declaration is invalid, or another pipeline names one of its tables.
    """
    plans: list[dict[str, Any]] = []
    try:
        each(names, lambda name: plans.append(_plan_of(name, max_records, as_json=as_json)))
    finally:
        if as_json and plans:
            printing.say(printing.as_json(plans if len(set(names)) > 1 else plans[0]))


def _plan_of(name: str, max_records: int | None, *, as_json: bool) -> dict[str, Any]:
    """What the next epoch would read, for a program; printed for a person unless ``as_json``."""
    declared = find_alone(name)
    since, changed = _changes(declared)
    request = PlanRequest(
        record_limit=max_records,
        writers=spark_writers(declared.spark_conf, spark_master(declared.spark_connection)),
        settings=resolve_settings(declared, file=file_settings()),
    )
    try:
        upcoming = preview(adapters().ledger(declared), adapters().offsets(declared), declared, request)
    except EpochlineError:
        # A changed declaration is the likely reason for a refusal.
        if changed and not as_json:
            _show_changes(since, changed)
        raise
    if not as_json:
        _show(declared, upcoming)
        _show_changes(since, changed)
        printing.say(_what_was_checked(declared))
    return _as_dict(declared, upcoming, since, changed)


def _what_was_checked(declared: Pipeline) -> str:
    tables = [sink.table for sink in declared.tables]
    checked = ["the declaration", f"table{'' if len(tables) == 1 else 's'} {', '.join(tables)}"]
    checked += [f"source {declared_input.source.described}" for declared_input in declared.inputs.values()]
    checked += ["consumer group " + declared.consumer_group] if declared.source.mirror else []
    checked += [sink.name for sink in declared.post_commit_sinks]
    return (
        f"{declared.name}: checked {', '.join(checked)}, as the plan of a run does. No record was parsed:"
        f" `epochline preview {declared.name}` parses the next ones. Nothing was written."
    )


def _changes(declared: Pipeline) -> tuple[int | None, list[Change]]:
    """The last epoch's id, and what changed in the declaration since then."""
    with session(adapters().postgres_dsn(declared.postgres_connection)) as ledger:
        newest = ask(ledger, "newest_declaration", pipeline=declared.name)
    if not newest:
        return None, []
    current = json.loads(declared.stored())
    with adapters().ledger(declared).transaction() as tx:
        earlier = (json.loads(former.stored()) for former in tx.epochs.declarations(declared.name))
        written = as_last_written(newest[0]["body"], earlier, current)
    return newest[0]["epoch_id"], changes(written, current)


def _rows(upcoming: PlanPreview) -> list[dict[str, Any]]:
    ranges = {planned_range.tp: planned_range.range for planned_range in upcoming.ranges}
    chosen_by = {origin.tp: origin.chosen_by for origin in upcoming.origins}
    reads = [(head, ranges.get(head.tp)) for head in sorted(upcoming.heads, key=lambda head: head.tp)]
    return [
        {
            "topic": head.tp.topic,
            "partition": head.tp.partition,
            "head": head.next_offset,
            "start": read.start if read else None,
            "until": read.until if read else None,
            "offsets": len(read) if read else 0,
            "backlog_after": upcoming.backlog[head.tp] - (len(read) if read else 0),
            "origin": chosen_by.get(head.tp),
        }
        for head, read in reads
    ]


def _as_dict(declared: Pipeline, upcoming: PlanPreview, since: int | None, changed: list[Change]) -> dict[str, Any]:
    return {
        "pipeline": declared.name,
        "declaration_hash": declared.declaration_hash,
        "unfinished_epoch": None if upcoming.unfinished is None else upcoming.unfinished.epoch_id,
        "partitions": _rows(upcoming),
        "offsets": sum(len(planned_range.range) for planned_range in upcoming.ranges),
        "idle": upcoming.idle,
        "notes": list(upcoming.notes),
        "declared_since_epoch": since,
        "changes": [asdict(change) for change in changed],
    }


def _show(declared: Pipeline, upcoming: PlanPreview) -> None:
    rows = _rows(upcoming)
    printing.table(
        ("topic", "partition", "head", "would read", "offsets", "backlog after"),
        [
            (
                row["topic"], row["partition"],
                row["head"] if row["origin"] is None else f"{row['head']} ({row['origin']})",
                f"[{row['start']}, {row['until']})" if row["offsets"] else "-",
                number(row["offsets"]), number(row["backlog_after"]),
            )
            for row in rows
        ],
    )  # fmt: skip
    total, after = sum(row["offsets"] for row in rows), number(sum(row["backlog_after"] for row in rows))
    if total:
        printing.say(f"the next epoch of {declared.name} would read {counted(total, 'offset')} and leave {after}")
    elif upcoming.idle:
        printing.say(f"{declared.name}: nothing to read; a run would close windows, because the source is idle")
    else:
        printing.say(f"{declared.name}: nothing to read; a run would be skipped")
    if upcoming.unfinished is not None:
        epoch = upcoming.unfinished
        how = "commits it first" if epoch.state == "PRE_COMMITTED" else "settles it first"
        printing.say(f"{epoch} is {epoch.state} (attempt {epoch.attempt}, {epoch.run}): the next run {how}")
    for note in upcoming.notes:
        printing.say(note)


def _show_changes(since: int | None, changed: list[Change]) -> None:
    if since is None:
        printing.say("the ledger has no epoch of it yet; every topic begins as its startup mode says")
    elif not changed:
        printing.say(f"the declaration is that of epoch {since}")
    else:
        printing.say(f"the declaration changed since epoch {since}:")
        rows = [(str(change), str(change.effect), change.advice) for change in changed]
        printing.table(("change", "effect", "what to do"), rows)
