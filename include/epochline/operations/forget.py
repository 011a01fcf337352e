"""Forget a key: erase a person's values from what epochs keep beside their targets, and from targets if asked."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from pydantic import Field

from epochline.coordinator.discard import sweep
from epochline.declare.parsers import Json
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError
from epochline.operations.action import ActionPreview, Afterwards, Case, DirectAction, Parameters, Request, refused
from epochline.ports import RecordPlace, StoredRecord, Transaction
from epochline.protocol.quantities import counted

_SHOWN = 10
"""A preview names this many records at most."""

_NOT_ERASED = (
    "not erased: Kafka's topics, what topics and files of sinks show, exported savepoints, backups; reasons that people"
    " gave, and numbers with which bounds compare; PostgreSQL's dead rows and statistics until it vacuums and analyzes,"
    " its WAL and its logs; logs of Airflow and Spark"
)


class ForgetParameters(Parameters):
    """Whose values."""

    key: list[str] = Field(
        description="COLUMN=VALUE pairs, or the value alone if the tables have one key column.",
        json_schema_extra={"argument": True},
    )
    target: bool = Field(False, description="Erase rows of the targets, too.")
    quarantine_offsets: list[str] = Field(
        [], description="TOPIC/PARTITION/OFFSET of a quarantined record to erase, too."
    )


class Forget(DirectAction[ForgetParameters, None]):
    """Erase the values of KEY from quarantine, before-images, deleted keys, savepoints, state, errors and epoch files
    of PIPELINE, and with --target from its targets. Cannot be undone. The ledger keeps operator, time, reason and
    counts, not KEY. A record with the key that is read later is written as usual.
    """

    name = "forget"
    parameters = ForgetParameters

    def describe(self, case: Case[ForgetParameters, None]) -> ActionPreview:
        tx, pipeline, asked = case.tx, case.pipeline, case.parameters
        declared = _declaration(case)
        key = _key(asked.key, declared)
        unfinished = case.unfinished
        if unfinished is not None:
            return refused(
                f"{unfinished} is {unfinished.state} and may hold the values; let {unfinished.run} finish it, or abort"
                " it first."
            )
        # Of any sink: one that is no longer declared shows its epochs, too.
        due = tx.receipts.unpublished(pipeline)
        if due:
            return refused(
                f"committed epochs wait to be shown by {', '.join(due)} and may hold the values; run"
                f" `epochline publish {pipeline}` first."
            )
        records = _Records(tx, case, declared, key)
        records.refuse_unknown(asked.quarantine_offsets)
        # Last, because it locks state, for which a commit would wait.
        held = tx.erasures.holdings(pipeline, key)
        if held.obstacle is not None:
            return refused(held.obstacle)
        if held.needs_target is not None and not asked.target:
            return refused(
                f"{held.needs_target} still has rows of the key, and a restore puts their before-images back: erase"
                " both with --target, or let a tombstone delete the rows first."
            )
        numbers = {"quarantine": len(records.hers), **held.copies, "errors and refused rows": held.texts}
        if asked.target:
            numbers |= {f"target {table}": rows for table, rows in held.targets.items()}
        erased = {place: rows for place, rows in numbers.items() if rows}
        lines = [f"{place}: {counted(rows, 'row')} erased" for place, rows in erased.items()] or ["nothing holds it"]
        lines += [
            f"target {table}: {counted(rows, 'row')} not erased; --target erases them"
            for table, rows in held.targets.items()
            if rows and not asked.target
        ]
        lines += records.lines()
        lines += [f"{name}: not searched, it has no column {', '.join(key)}" for name in held.unsearched]
        if tx.erasures.has_state(pipeline):
            lines.append("later epochs begin without its state")
            lines += [
                f"epoch files of {pipeline} in {folder}: all deleted; the next run writes the newest again"
                for folder in tx.erasures.folders(pipeline)
            ]
        lines.append(_NOT_ERASED)
        return ActionPreview(lines=lines, before={}, after={"columns": sorted(key), "erased": erased})

    def change(self, case: Case[ForgetParameters, None], request: Request) -> Afterwards:
        tx, pipeline, ledger = case.tx, case.pipeline, case.subject.ledger
        declared = _declaration(case)
        key = _key(case.parameters.key, declared)
        if any(_mentions(value, request.reason) for value in key.values()):
            raise ActionRefusedError(
                "the reason mentions the key, and the ledger keeps the reason: say it in other words. Nothing was"
                " changed."
            )
        tx.targets.allow_time(declared.commit_statement_timeout)
        records = _Records(tx, case, declared, key).hers
        by, why = request.actor.strip(), request.reason.strip()
        tx.erasures.erase(pipeline, key, records, targets=case.parameters.target, by=by, why=why)

        def afterwards() -> Sequence[str]:
            lines = [f"the key is forgotten by {pipeline}"]
            with ledger.transaction() as later:
                for folder, files in later.erasures.delete_files(pipeline).items():
                    lines.append(f"{counted(files, 'epoch file')} deleted in {folder}")
            sweep(ledger, pipeline)
            with ledger.transaction() as later:
                left = len(later.attempts.left_over(pipeline))
            return (
                [*lines, f"{counted(left, 'attempt')} of ended epochs still has staging; run the janitor"]
                if left
                else lines
            )

        return afterwards


def _declaration(case: Case[Any, Any]) -> Pipeline:
    """That of the file, or else that of the newest committed epoch: a dropped pipeline still holds values."""
    declared = case.subject.declared or case.tx.epochs.last_declaration(case.pipeline)
    if declared is None:
        raise ActionRefusedError(f"no epoch of {case.pipeline} was committed: nothing is kept. Nothing was changed.")
    return declared


def _key(given: Sequence[str], declared: Pipeline) -> dict[str, str]:
    """Values by column. A value is never part of an error."""
    keyed = [tuple(table.key) for table in (*declared.targets, *declared.states) if table.key]
    columns = {name for input_ in declared.inputs.values() for name in input_.parsed_columns}
    columns |= {
        name for table in (*declared.targets, *declared.states) for name in (*(table.columns or ()), *table.key)
    }
    key: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or name not in columns:
            if len(given) > 1 or len(set(keyed)) != 1 or len(keyed[0]) != 1:
                raise ActionRefusedError(
                    f"KEY: write COLUMN=VALUE, with columns among {', '.join(sorted(columns))}. Nothing was changed."
                )
            ((name,), value) = keyed[0], pair
        if name in key:
            raise ActionRefusedError(f"KEY: column {name} is given twice. Nothing was changed.")
        if not value or "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ActionRefusedError(f"KEY: column {name} has no value that PostgreSQL takes. Nothing was changed.")
        key[name] = value
    return key


@dataclass
class _Records:
    """The quarantined records of a key, those that only mention it, and those that cannot be searched."""

    tx: Transaction
    case: Case[ForgetParameters, None]
    declared: Pipeline
    key: Mapping[str, str]
    hers: list[RecordPlace] = field(default_factory=list)
    mentioning: list[str] = field(default_factory=list)
    unreadable: int = 0
    named: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        parse, asked = self.case.subject.parse, set(self.case.parameters.quarantine_offsets)
        names = {column: {column} for column in self.key}
        for input_ in self.declared.inputs.values():
            if isinstance(input_.parse, Json):
                for column in names.keys() & input_.parse.steps.keys():
                    names[column].add(str(input_.parse.steps[column][-1]))
        for page in self.tx.erasures.records(self.case.pipeline):
            parsed = [()] * len(page) if parse is None else parse(self.declared, page)
            for record, rows in zip(page, parsed, strict=True):
                if str(record) in asked:
                    self.named.add(str(record))
                    self.hers.append(record.place)
                elif self._is_hers(record, rows, names):
                    self.hers.append(record.place)
                elif any(map(self._mentioned, (record.key, record.value, _headers(record), record.reason.encode()))):
                    self.mentioning.append(str(record))
                elif not rows and not (_is_text(record.key) and _is_text(record.value)):
                    self.unreadable += 1

    def _is_hers(self, record: StoredRecord, rows: Iterable[Mapping[str, Any]], names: Mapping[str, set[str]]) -> bool:
        # The key of a record is that of a table's row, if the table has a key of one column.
        if record.key is not None and any(
            self.key.keys() == {*table.key} and record.key == self.key[table.key[0]].encode()
            for table in (*self.declared.targets, *self.declared.states)
            if len(table.key) == 1
        ):
            return True
        if any(all(_same(row.get(column), value) for column, value in self.key.items()) for row in rows):
            return True
        documents = [*_objects(record.key), *_objects(record.value)]
        return any(
            all(any(_same(found.get(name), value) for name in names[column]) for column, value in self.key.items())
            for found in documents
        )

    def _mentioned(self, content: bytes | None) -> bool:
        texts = [] if content is None else [content.decode("utf-8", "replace")]
        return bool(texts) and all(
            _mentions(value, texts[0]) or _mentions(json.dumps(value)[1:-1], texts[0]) for value in self.key.values()
        )

    def refuse_unknown(self, asked: Sequence[str]) -> None:
        unknown = sorted(set(asked) - self.named)
        if unknown:
            raise ActionRefusedError(
                f"the quarantine of {self.case.pipeline} has no bytes of {', '.join(unknown)}; write"
                " TOPIC/PARTITION/OFFSET. Nothing was changed."
            )

    def lines(self) -> Iterator[str]:
        if self.mentioning:
            shown = ", ".join(self.mentioning[:_SHOWN]) + (", …" if len(self.mentioning) > _SHOWN else "")
            yield (
                f"quarantine: {counted(len(self.mentioning), 'record')} left that mention it, and nothing says whose"
                f" they are: {shown}. --quarantine-offsets erases the records that it names"
            )
        if self.unreadable:
            yield (
                f"quarantine: {counted(self.unreadable, 'record')} cannot be searched: neither parse nor a text."
                " --quarantine-offsets erases the records that it names; the retention `quarantined` erases all in time"
            )


def _mentions(value: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _headers(record: StoredRecord) -> bytes:
    values = [base64.b64decode(value) for _, value in record.headers or () if value]
    return b"\n".join([*((name or "").encode() for name, _ in record.headers or ()), *values])


def _is_text(content: bytes | None) -> bool:
    try:
        return content is None or (content.decode().isprintable() or not re.search(rb"[\x00-\x08\x0e-\x1f]", content))
    except UnicodeDecodeError:
        return False


def _objects(content: bytes | None) -> Iterator[Mapping[str, Any]]:
    """Every JSON object in a document, however deep."""
    try:
        found = [json.loads(content, parse_float=Decimal)] if content else []
    except (ValueError, RecursionError):
        return
    while found:
        value = found.pop()
        if isinstance(value, dict):
            yield value
            found += value.values()
        elif isinstance(value, list):
            found += value


def _same(value: Any, text: str) -> bool:
    """Whether a parsed value is the one of a key's text: numbers by their value."""
    if value is None or isinstance(value, dict | list):
        return False
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            return Decimal(str(value)) == Decimal(text)
        except InvalidOperation:
            return False
    return str(value).casefold() == text.casefold() if isinstance(value, bool) else str(value) == text
