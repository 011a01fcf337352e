"""`epochline preview`: parse the next records here, and show rows and refusals."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochline.cli import connections, printing
from epochline.cli.options import Name
from epochline.config import discovery
from epochline.config.registry import Registries
from epochline.coordinator import upcoming_ranges
from epochline.declare.columns import DELETED, LINEAGE
from epochline.declare.inputs import require_one
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochError, EpochlineError
from epochline.protocol.quantities import counted, number

if TYPE_CHECKING:
    from epochline.audit.preview import ParsedRecords

Made = Mapping[str, Sequence[Mapping[str, Any]]]
"""By sink, the rows that a transform makes."""

_LONGEST = 60
"""Characters of a value in the table."""

_PATIENCE_SECONDS = 30


def preview(
    pipeline: Name,
    records: Annotated[int, typer.Option(min=1, help="Most offsets to read, over all partitions.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: whole values.")] = False,
) -> None:
    """Parse the next records of PIPELINE here, and show rows and refusals; run its transform. Writes nothing.

    Reads from the heads, as the next epoch would, even while the pipeline is paused or its tables are missing. Marks a
    row that deletes its key from an upsert target. Runs a transform in a local Spark with empty state tables, and finds
    a column that it does not return and a value that does not fit, even without a record. Does not check rules that
    only the target knows, such as NOT NULL. Exit code 0: success, even if there is no record, or some are refused;
    1: the source or the ledger cannot be read, or the parse fails as a whole; 2: there is no such pipeline, or its
    declaration is invalid.
    """
    from epochline.audit.preview import preview_ranges  # It loads Arrow.

    declared = discovery.find(pipeline)
    source = require_one(pipeline, declared.source, "a preview")
    Registries(connections.adapters().registries_of(declared)).install()
    ledger, offsets = connections.adapters().ledger(declared), connections.adapters().offsets(declared)
    ranges = upcoming_ranges(ledger, offsets, declared, records)
    try:
        parsed = preview_ranges(declared, connections.adapters().records(source, _PATIENCE_SECONDS), ranges)
    except EpochlineError:
        raise
    except Exception as error:  # a pipeline's own function may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise EpochError(
            f"{pipeline}: the parse raised {type(error).__name__}: {error} ({place.filename}:{place.lineno}). An epoch"
            " of these records would fail. Return the reason in _error for a record that cannot be parsed."
        ) from error
    transformed = _transformed(declared, parsed, records) if declared.transform is not None else None
    if as_json:
        printing.say(printing.as_json(_as_dict(declared, parsed, transformed)))
    else:
        _show(declared, parsed, transformed or {})


def _transformed(declared: Pipeline, parsed: ParsedRecords, records: int) -> Made:
    """The rows of each sink by the pipeline's transform.

    Raises:
        EpochlineError: the transform raises, or does not give what is declared.
    """
    from epochline.cli.execution import spark_log, start_spark
    from epochline.spark.failure import class_and_message, epochline_error_from
    from epochline.spark.stage_frames import transformed

    with ExitStack() as block:
        spark = start_spark(block, declared, connections.spark_master(declared.spark_connection))
        try:
            return transformed(spark, declared, parsed.batches, records)
        except Exception as error:
            ours = epochline_error_from(error)
            if ours is not None:
                raise ours from None
            name, message = class_and_message(error)
            raise EpochError(
                f"{declared.name}: the transform {declared.transform} raised {name}: {message}. An epoch of these"
                f" records would fail. Spark's log is {spark_log()}"
            ) from error


def _place(topic: str, partition: int, offset: int) -> str:
    return f"{topic}/{partition}/{offset}"


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in (*LINEAGE, DELETED)}


def _short(value: Any) -> str | None:
    if value is None:
        return None
    content = printing.text(value)
    return content if len(content) <= _LONGEST else f"{content[:_LONGEST]}…"


def _as_dict(declared: Pipeline, parsed: ParsedRecords, transformed: Made | None) -> dict[str, Any]:
    return {
        "pipeline": declared.name,
        "records_read": parsed.read,
        "records_skipped": parsed.skipped,
        "rows": [
            {name: row[f"_{name}"] for name in ("topic", "partition", "offset", "row")}
            | {"deletes": row[DELETED], "values": _values(row)}
            for row in parsed.rows
        ],
        "refused": [asdict(refusal) for refusal in parsed.refused],
        "transformed": transformed,
    }


def _show(declared: Pipeline, parsed: ParsedRecords, transformed: Made) -> None:
    if not parsed.read:
        printing.say(f"{declared.name}: no record to read; nothing was written")
        _show_transformed(declared, transformed)
        return
    if parsed.rows:
        columns = list(_values(parsed.rows[0]))
        deletes = any(row[DELETED] for row in parsed.rows)
        printing.table(
            ("record", *(["effect"] if deletes else []), *columns),
            [
                (
                    _place(row["_topic"], row["_partition"], row["_offset"]),
                    *(["deletes its key" if row[DELETED] else "writes"] if deletes else []),
                    *(_short(row[name]) for name in columns),
                )
                for row in parsed.rows
            ],
        )
    for refusal in parsed.refused:
        printing.say(f"refused {_place(refusal.topic, refusal.partition, refusal.offset)}: {refusal.reason}")
    passed = parsed.read - parsed.skipped - len(parsed.refused)
    printing.say(
        f"{declared.name}: {counted(parsed.read, 'record')} read, {number(passed)} passed, {number(parsed.skipped)}"
        f" skipped, {number(len(parsed.refused))} refused; nothing was written"
    )
    _show_transformed(declared, transformed)
    if parsed.refused and declared.bad_records == "fail":
        printing.say("bad_records is 'fail': an epoch with a refused record fails. 'quarantine' would set it aside")


def _show_transformed(declared: Pipeline, transformed: Made) -> None:
    for sink, rows in transformed.items():
        empty = ", with empty state tables" if declared.state else ""
        printing.say(f"{sink}: the transform {declared.transform} makes {counted(len(rows), 'row')} of them{empty}")
        if rows:
            columns = list(_values(rows[0]))
            printing.table(columns, [[_short(row[name]) for name in columns] for row in rows])
