"""`epochline why`: from a row of a target to the records that made it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from epochline.cli import connections, database, printing
from epochline.cli.options import AsJson, OwnConnection
from epochline.cli.quarantine import dump
from epochline.config import discovery
from epochline.config.connections import POSTGRES
from epochline.config.logins import complete
from epochline.config.registry import Registries
from epochline.declare.inputs import require_one
from epochline.declare.names import INSPECTOR
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import CustomSource, KafkaSource, OneSource
from epochline.errors import EpochlineError, SourceError
from epochline.protocol.quantities import counted, on_one_line
from epochline.protocol.why import Content, Record, RowOrigin, Why

if TYPE_CHECKING:
    from epochline.audit.matching import Matched

_AT_TERMINALS = ("cli", "operator")


def why(
    table: Annotated[str, typer.Argument(help="A target or state table: TABLE, or SCHEMA.TABLE.")],
    key: Annotated[
        list[str], typer.Argument(help="COLUMN=VALUE for each column; or the value alone, for a key of one column.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Most rows, and most records of each, the newest first.")] = 20,
    connection: OwnConnection = None,
    as_json: AsJson = False,
) -> None:
    """Show what made the row of TABLE with KEY: record, epoch, attempt, run, log, declaration, and the record's bytes.

    Changes nothing. If many records made the row, names the ranges in which they are, and lists those with the row's
    key while the source has them. A login that may not see quarantined bytes gets no bytes here.

    Exit code 0: success; 1: there is no such row, or PostgreSQL or the source refuses or does not answer; 2: wrong use.
    """
    dsn = connections.adapters().postgres_dsn(connection or POSTGRES)
    with database.session(dsn) as ledger:
        ledger.set_session(isolation_level="REPEATABLE READ", autocommit=False)
        with ledger.cursor() as cursor:
            cursor.execute(ledger.before + "SELECT 1")
        answer = connections.adapters().explain(ledger, table, key, limit)
    look = _Look(dsn, answer, limit)
    rows = [look.row(origin) for origin in answer.rows]
    deletion = None if answer.deletion is None else look.record(answer.deletion)
    if as_json:
        head = {"pipeline": answer.pipeline, "table": answer.table, "mode": answer.mode, "more_rows": answer.more}
        printing.say(printing.as_json({**head, "rows": rows, "deleted_by": deletion}))
    else:
        _show(answer, rows, deletion)
    if look.failed:
        raise typer.Exit(1)


class _Look:
    """Asks the source for what the ledger names. ``failed`` says whether a source did not answer."""

    def __init__(self, dsn: str, answer: Why, most: int) -> None:
        self._dsn, self._why, self._most = dsn, answer, most
        self._stored, self._now = self._declarations()
        self.failed = False

    def _declarations(self) -> tuple[Pipeline | None, Pipeline | None]:
        """The newest declaration of the ledger, which a reader may not see, and that of the files."""
        stored = now = None
        with suppress(EpochlineError):
            now = discovery.find(self._why.pipeline)
        with suppress(EpochlineError), database.session(self._dsn) as ledger:
            [row] = database.ask(ledger, "newest_declaration", pipeline=self._why.pipeline)
            stored = Pipeline.from_stored(json.dumps(row["body"]))
        if (declared := stored or now) is not None:
            with suppress(EpochlineError):
                Registries(connections.adapters().registries_of(declared)).install()
        return stored, now

    def row(self, origin: RowOrigin) -> dict[str, Any]:
        """A row with what its source says, as JSON has it."""
        shown: dict[str, Any] = {**asdict(origin), "record": None, "records": [], "more_records": 0}
        notes = shown["notes"]
        if origin.epoch is not None and self._now is not None:
            shown["declared_as_now"] = self._now.declaration_hash == origin.epoch["declaration_hash"]
        if origin.record is not None:
            shown["record"] = self.record(origin.record)
            if self._stored is not None and "value" in shown["record"]:
                notes += self._differences(origin, origin.record)
        elif origin.scope is not None:
            matched = self._matched(origin)
            shown["records"] = [{"epoch_id": epoch, **_place(record)} for epoch, record in matched.records]
            shown["more_records"] = matched.more
            notes += matched.notes
        return shown

    def record(self, record: Record) -> dict[str, Any]:
        """A record with its bytes, or with the reason why there are none."""
        shown = _place(record)
        if not self._why.sees_bytes:
            return {**shown, "hidden": f"this login may not see bytes of records: it is no member of {INSPECTOR}"}
        try:
            content = connections.adapters().record_again(*self._source(record), record)
        except EpochlineError as error:
            self.failed = True
            return {**shown, "hidden": f"the source cannot be asked: {error}"}
        if isinstance(content, Content):
            return {**shown, **asdict(content)}
        return {**shown, "gone": content, "since": record.since_when or None}

    def _source(self, record: Record) -> tuple[OneSource, str]:
        """The source of a record, and the record's topic as the source names it."""
        kafka, declared = self._why.kafka_of(record.topic), self._stored or self._now
        if kafka is not None:
            connection, own = kafka
            return KafkaSource(topics=own, connection=connection), own
        for name, input_ in (declared.inputs if declared is not None else {}).items():
            own = record.topic.removeprefix(f"{name}/") if name else record.topic
            if isinstance(input_.source, CustomSource) and input_.source.reads(own):
                return input_.source, own
        raise SourceError(f"no declaration that this login may read has a source of {record.topic}")

    def _matched(self, origin: RowOrigin) -> Matched:
        from epochline.audit.matching import Matched, cannot_match
        from epochline.audit.records_of_row import records_of_row

        declared = self._stored or self._now
        if declared is None:
            obstacle: str | None = f"no file declares {self._why.pipeline}, and this login may not read its declaration"
        else:
            obstacle = cannot_match(declared, origin)
        if declared is None or obstacle is not None:
            return Matched(records=(), more=0, notes=(f"The records are not told: {obstacle}.",))
        try:
            source = connections.adapters().records(require_one(declared.name, declared.source, "a search for records"))
            ranges = () if origin.scope is None else origin.scope.ranges
            columns = (TextColumn("offsets read"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task("", total=sum(read["until_offset"] - read["start_offset"] for read in ranges))
                advance = partial(bar.advance, task)
                return records_of_row(complete(self._dsn), source, declared, self._why, origin, self._most, advance)
        except EpochlineError as error:
            self.failed = True
            return Matched(records=(), more=0, notes=(f"The records are not told: {error}",))

    def _differences(self, origin: RowOrigin, record: Record) -> Iterator[str]:
        from epochline.audit.records_of_row import differing_columns

        try:
            source = connections.adapters().records(self._source(record)[0])
            columns = differing_columns(complete(self._dsn), source, self._why, origin)
        except EpochlineError as error:
            yield f"The row was not compared with its record: {error}"
            return
        if columns:
            yield (
                f"The row differs from what its record gives by today's parse, in {', '.join(columns)}: another hand"
                " changed the row, or the parse was changed."
            )


def _place(record: Record) -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset, "row": record.row}


def _show(answer: Why, rows: list[dict[str, Any]], deletion: dict[str, Any] | None) -> None:
    printing.say(f"{answer.table} of {answer.pipeline}, mode {answer.mode}")
    if deletion is not None:
        printing.say("there is no such row; an epoch deleted it:")
        _show_record(deletion)
    for row in rows:
        printing.say()
        printing.say(", ".join(f"{name}={_value(value)}" for name, value in row["key"].items()))
        if row["epoch"] is not None:
            _show_epoch(answer.pipeline, row)
        if row["record"] is not None:
            _show_record(row["record"])
        if row["scope"] is not None:
            _show_scope(row)
        for replaced in row["replaced"]:
            before = "there was no row" if not replaced["existed"] else _lineage(replaced)
            printing.say(f"before epoch {replaced['replaced_by']}: {before}")
        for note in row["notes"]:
            printing.say(note)
    if answer.more:
        printing.say(f"and more rows; --limit shows more than {len(rows)}")


def _show_epoch(pipeline: str, row: Mapping[str, Any]) -> None:
    epoch = row["epoch"]
    kind = "" if epoch["kind"] == "regular" else f" ({epoch['kind']})"
    committed = printing.moment(epoch["committed_at"])
    printing.say(f"epoch {epoch['epoch_id']}{kind}, attempt {epoch['attempt']}, committed {committed}")
    printing.say(f"run {epoch['run_id']} of {epoch['dag_id']} on {epoch['host'] or 'an unknown host'}")
    if epoch["dag_id"] in _AT_TERMINALS:
        printing.say(f"log: a command made it; `epochline ledger {pipeline} --epoch {epoch['epoch_id']}`")
    else:
        path = f"dags/{epoch['dag_id']}/runs/{epoch['run_id']}/tasks/pre_commit"
        printing.say(f"log: `epochline logs {pipeline} {epoch['epoch_id']}`; in Airflow {path}")
    as_now = row.get("declared_as_now")
    declared = "" if as_now is None else ", as it is declared now" if as_now else "; another one is declared now"
    printing.say(f"declaration {epoch['declaration_hash']}{declared}")


def _show_record(record: Mapping[str, Any]) -> None:
    number = f", row {record['row']}" if record["row"] else ""
    printing.say(f"record {_name(record)}{number}")
    if "hidden" in record:
        printing.say(record["hidden"])
    elif "gone" in record:
        printing.say("; ".join(filter(None, [record["gone"], record["since"]])))
    else:
        for name, value in record["headers"]:
            printing.say(f"header {name}: {'none' if value is None else on_one_line(value)}")
        for part in ("key", "value"):
            for line in dump(part, record[part]):
                printing.say(line)


def _show_scope(row: Mapping[str, Any]) -> None:
    first, last, said = (row["scope"][name] for name in ("first", "last", "said"))
    epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
    printing.say(f"no single record: {said}; its records are in {epochs}")
    for read in row["scope"]["ranges"]:
        printing.say(f"  {read['topic']}-{read['partition']} [{read['start_offset']}, {read['until_offset']})")
    if not row["records"]:
        return
    printing.say("records with the row's key, the newest first:")
    for record in row["records"]:
        printing.say(f"  {_name(record)} of epoch {record['epoch_id']}")
    if row["more_records"]:
        printing.say(f"  and {counted(row['more_records'], 'record')} more")


def _name(record: Mapping[str, Any]) -> str:
    return f"{record['topic']}/{record['partition']}/{record['offset']}"


def _lineage(replaced: Mapping[str, Any]) -> str:
    epoch = f" of epoch {replaced['epoch']}" if replaced.get("epoch") is not None else ""
    return f"a row of record {_name(replaced)}{epoch}" if replaced.get("offset") is not None else f"a row{epoch}"


def _value(text: str | None) -> str:
    return "NULL" if text is None else on_one_line(text.encode())
