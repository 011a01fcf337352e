"""`epochline audit --declaration`: compare a table that another program wrote with the records between two times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from epochline.cli import connections, printing
from epochline.config import discovery
from epochline.config.logins import complete
from epochline.config.registry import Registries
from epochline.declare.inputs import require_kafka
from epochline.declare.pipeline import Pipeline
from epochline.errors import DeclarationError
from epochline.protocol.epoch import moment_of
from epochline.protocol.quantities import counted

if TYPE_CHECKING:
    from epochline.audit.foreign import ForeignResult, ForeignSummary
    from epochline.kafka.records import RecordReader

DIFFERENT = 1
NOT_JUDGED = 3

_LINEAGE = ("topic", "partition", "offset", "row")


def audit_declared(
    file: Path, name: str | None, since: str | None, until: str | None, lineage: Sequence[str], *, as_json: bool,
    epochs: str | None,
) -> None:  # fmt: skip
    """Run the audit and print it; raises `typer.Exit` unless everything is exact."""
    from epochline.audit.foreign import audit_foreign  # It loads Arrow.

    if since is None or until is None or epochs is not None:
        raise typer.BadParameter("--declaration needs --from and --until, and takes no --epochs")
    columns, moments = _lineage(lineage), (_time(since, "--from"), _time(until, "--until"))
    declared = _chosen(discovery.unscheduled(file), file, name)
    adapters = connections.adapters()
    Registries(adapters.registries_of(declared)).install()
    source = require_kafka(declared.name, declared.source, "an audit of such a table")
    reader: RecordReader = adapters.records(source)  # type: ignore[assignment]  # it is in Kafka
    dsn = complete(adapters.postgres_dsn(declared.postgres_connection))
    summary = audit_foreign(dsn, reader, adapters.offsets(declared), declared, columns, *moments)
    for value, text in _lines(summary):
        printing.say(printing.json_line(value) if as_json else text)
    if any(table.differences for table in summary.tables):
        raise typer.Exit(DIFFERENT)
    if summary.not_judged or any(table.not_judged for table in summary.tables):
        raise typer.Exit(NOT_JUDGED)


def _lineage(given: Sequence[str]) -> Mapping[str, str]:
    columns = dict(text.partition("=")[::2] for text in given)
    if len(columns) < len(given) or set(columns) - set(_LINEAGE) or not all(columns.values()):
        raise typer.BadParameter(f"write one of {', '.join(_LINEAGE)} = COLUMN, each once", param_hint="--lineage")
    return columns


def _time(text: str, option: str) -> datetime:
    try:
        return moment_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _chosen(declared: Mapping[str, Pipeline], file: Path, name: str | None) -> Pipeline:
    if name is None and len(declared) == 1:
        return next(iter(declared.values()))
    if name is None or name not in declared:
        raise DeclarationError(f"{file} declares {', '.join(declared)}; name one of them.")
    return declared[name]


def _lines(summary: ForeignSummary) -> list[tuple[dict[str, Any], str]]:
    """What is printed: each line for programs and for people."""
    lines: list[tuple[dict[str, Any], str]] = []
    for one in summary.ranges:
        early = f", {one.early} with a time before --from" if one.early else ""
        later = f"; {one.log_end - one.until} offsets after it not compared" if one.log_end > one.until else ""
        said = f"{one.topic}-{one.partition} [{one.start}, {one.until}): {counted(one.records, 'record')}"
        lines.append(({"range": asdict(one)}, f"{said}{early}{later}"))
    for table in summary.tables:
        lines += [({"difference": asdict(found)}, str(found)) for found in table.sample]
        lines.append((_totals(table), _told(table)))
    lines += [({"not_judged": why}, f"not judged: {why}") for why in summary.not_judged]
    return lines


def _totals(table: ForeignResult) -> dict[str, Any]:
    fields = asdict(table)
    return {"table": {**fields, "sample": len(table.sample), "differences": table.differences}}


def _told(table: ForeignResult) -> str:
    different = ", ".join(f"{number} {kind}" for kind, number in table.totals.items() if number)
    verdict = different or ("no difference" if table.not_judged else "exact")
    lines = [f"{table.table}: {counted(table.rows, 'row')} of the records, compared by {table.by}: {verdict}"]
    lines += [f"  {counted(table.refused, 'record')} refused by the declaration"] if table.refused else []
    lines += [f"  the first {len(table.sample)} are named"] if len(table.sample) >= 1000 else []
    lines += [f"  not judged: {why}" for why in table.not_judged]
    lines += [f"  {note}" for note in table.notes]
    return "\n".join(lines)
