"""`epochline quarantine`: the records that epochs set aside, and the command that reads them again."""

import base64
import json
import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from epochline.cli import connections, database, printing
from epochline.cli.ledger import check_known, connection_of
from epochline.cli.options import Name, OwnConnection
from epochline.errors import EpochNotFoundError
from epochline.protocol.quantities import counted, hex_lines, on_one_line

_PLACE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<offset>\d+)")
_LISTED_BYTES = 40
_WHOLE = 2**30 - 1
"""No value in PostgreSQL has more bytes."""


def quarantine(
    pipeline: Name,
    epoch: Annotated[int | None, typer.Option(min=1, help="Only records that this epoch quarantined.")] = None,
    reason: Annotated[
        str | None, typer.Option(help="Only records with a reason LIKE this, as in SQL: '%not JSON%'.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many records, the newest first.")] = 20,
    show: Annotated[
        str | None,
        typer.Option(metavar="TOPIC/PARTITION/OFFSET", help="Show this record whole: bytes, key, headers, reason."),
    ] = None,
    connection: OwnConnection = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: whole keys and values, as PostgreSQL writes bytea in hex.")
    ] = False,
) -> None:
    """List the quarantined records of PIPELINE, or with --show one record with its bytes and headers.

    Changes nothing. Without a filter, also lists rows without a record that a target refused since the last commit.
    Ends with the command that reads the listed records again: run it once parse is corrected. Exit code 0: success,
    even if the list is empty; 1: there is no such pipeline or record, or the ledger cannot be read; 2: wrong use.
    """
    place = _place(show)
    conditions = {"pipeline": pipeline, "epoch": epoch, "reason": reason}
    most = _WHOLE if as_json or show else _LISTED_BYTES
    with database.session(connections.adapters().postgres_dsn(connection or connection_of(pipeline))) as ledger:
        rows = database.ask(ledger, "quarantined_records", **conditions, **place, most_bytes=most, limit=limit)
        if not rows:
            check_known(pipeline, {row["pipeline"] for row in database.ask(ledger, "pipelines")})
        (waiting,) = database.ask(ledger, "quarantine_waiting", **conditions)
        whole = not (epoch or reason or show or as_json)
        refused = database.ask(ledger, "refused_rows", pipeline=pipeline, limit=limit) if whole else []
    if show and not rows:
        raise EpochNotFoundError(
            f"the quarantine of {pipeline} has no record {show}; `epochline quarantine {pipeline}` lists its records."
        )
    if as_json:
        for row in rows:
            del row["value_bytes"], row["is_current"]
        printing.say(printing.as_json(rows))
    elif show:
        for row in rows:
            _show_one(pipeline, row)
    else:
        _list(pipeline, rows, waiting["records"], epoch, reason)
        if refused:
            # They stop the pipeline, and no quarantine takes them, because they belong to no single record.
            printing.say("rows that a target refused since the last commit; a transform or a sum made them:")
            cells = [(row["epoch_id"], row["sink"], json.dumps(row["row"]), row["reason"]) for row in refused]
            printing.table(("epoch", "sink", "row", "reason"), cells)


def _place(show: str | None) -> dict[str, Any]:
    if show is None:
        return {"topic": None, "partition": None, "offset": None}
    match = _PLACE.fullmatch(show)
    if match is None:
        raise typer.BadParameter(f"{show!r}: write TOPIC/PARTITION/OFFSET, as in orders/0/17", param_hint="--show")
    return {"topic": match["topic"], "partition": int(match["partition"]), "offset": int(match["offset"])}


def _list(pipeline: str, rows: list[dict[str, Any]], waiting: int, epoch: int | None, reason: str | None) -> None:
    if not rows:
        printing.say(f"no record in the quarantine of {pipeline}{' matches' if epoch or reason else ''}")
        return
    printing.table(
        ("epoch", "record", "time", "reason", "key", "value", "requeued by"),
        [
            (
                row["epoch_id"], _name(row), row["quarantined_at"], row["reason"], _beginning(row["key"]),
                _beginning(row["value"], row["value_bytes"]), row["requeued_by"],
            )
            for row in rows
        ],
        least=("time", "key", "requeued by"),
    )  # fmt: skip
    if not waiting:
        printing.say("each of them was requeued or erased, or belongs to an earlier generation")
        return
    chosen = [f"--epoch {epoch}"] if epoch else []
    chosen += [f"--like {shlex.quote(reason)}"] if reason else []
    printing.say(f"{counted(waiting, 'record')} not requeued yet. Correct the parse, and then run:")
    printing.say(_requeue(pipeline, *(chosen or ["--everything"])))


def _requeue(pipeline: str, *chosen: str) -> str:
    return f"epochline requeue {pipeline} {' '.join(chosen)} --reason …"


def _name(row: dict[str, Any]) -> str:
    return f"{row['topic']}/{row['partition']}/{row['offset']}"


def _beginning(content: memoryview | None, size: int | None = None) -> str | None:
    """The first bytes on one line; the number of all bytes if there are more."""
    if content is None:
        return None
    first = bytes(content[:_LISTED_BYTES])
    whole = len(content) if size is None else size
    return on_one_line(first) + (f"… ({counted(whole, 'byte')})" if whole > len(first) else "")


def _show_one(pipeline: str, row: dict[str, Any]) -> None:
    printing.say(f"{_name(row)} of epoch {row['epoch_id']}, generation {row['generation']}")
    printing.say(f"reason: {row['reason']}")
    printing.say(f"time of the record: {printing.text(row['record_timestamp']) or 'none'}")
    printing.say(f"set aside: {printing.text(row['quarantined_at'])}")
    for name, value in row["headers"] or []:
        printing.say(f"header {name}: {'none' if value is None else on_one_line(base64.b64decode(value))}")
    for part in ("key", "value"):
        for line in dump(part, row[part]):
            printing.say(line)
    if row["requeued_by"] is not None:
        printing.say(f"requeued by epoch {row['requeued_by']} at {printing.text(row['requeued_at'])}")
        return
    if row["erased_at"] is not None:
        return
    chosen = [f"--topic {shlex.quote(row['topic'])}", f"--partition {row['partition']}", f"--offset {row['offset']}"]
    chosen += [] if row["is_current"] else [f"--generation {row['generation']}"]
    printing.say("Correct the parse, and then run:")
    printing.say(_requeue(pipeline, *chosen))


def dump(part: str, content: memoryview | None) -> Iterator[str]:
    """A key or a value: as text with escapes, and 16 bytes a line in hex."""
    if content is None:
        yield f"{part}: none"
        return
    whole = bytes(content)
    yield f"{part}, {counted(len(whole), 'byte')}: {on_one_line(whole)}"
    yield from (f"  {line}" for line in hex_lines(whole))
