"""What a pipeline shows after a run, and how two runs differ: rows are counted, so that a doubled one is seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from epochline.declare.external import CustomSink, Files
from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.declare.topic import KafkaTopic
from epochline.kafka.records import RecordReader
from epochline.postgres.queries.statements import Connection, compose, joined, query
from epochline.protocol.offsets import OffsetRange
from epochline.sinks.file_manifest import committed_files
from epochline.sinks.file_rows import rows_in

Content = Mapping[str, int]
"""How often each row is there; a row is a JSON list of its values as text."""

_LEDGER = {
    "quarantine": """SELECT topic, partition, "offset", key, value, headers, record_timestamp, reason
        FROM epochline.quarantine WHERE pipeline = {name}""",
    "ledger: next offsets": "SELECT topic, partition, next_offset FROM epochline.heads WHERE pipeline = {name}",
    "ledger: records read, passed, skipped, quarantined, rows": """SELECT sum(records_read), sum(records_passed),
        sum(records_skipped), sum(records_quarantined), sum(rows_written)
        FROM epochline.epochs WHERE pipeline = {name} AND state = 'COMMITTED'""",
    "left over: epochs, staging, unpublished": """
        SELECT 'epoch', state FROM epochline.epochs WHERE pipeline = {name} AND state IN ('PLANNED', 'PRE_COMMITTED')
        UNION ALL SELECT 'staging', tablename FROM pg_catalog.pg_tables WHERE schemaname = 'epochline_staging'
        UNION ALL SELECT 'unpublished', sink FROM epochline.receipts WHERE pipeline = {name} AND state <> 'SHOWN'""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one place differs from the undisturbed run."""

    place: str
    missing: int
    extra: int
    samples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {self.missing} missing, {self.extra} too many; {'; '.join(self.samples)}"


def shown(pipeline: Pipeline, dsn: str, kafka: Mapping[str, str]) -> dict[str, Content]:
    """What the targets, states, topics and files of a pipeline show, and what its ledger says of it, by place."""
    with closing(psycopg2.connect(dsn)) as session:
        name = sql.Literal(pipeline.name)
        asked = {place: f"SELECT to_jsonb(one)::text FROM ({text}) AS one" for place, text in _LEDGER.items()}  # noqa: S608
        places = {place: _counted(query(session, compose(text, name=name))) for place, text in asked.items()}
        for table in (*pipeline.targets, *pipeline.states):
            places[table.table] = _table(session, pipeline, table)
    for sink in pipeline.topics:
        for topic in sink.topics:
            places[f"topic {topic}"] = _topic(kafka, sink, topic)
    for files in pipeline.external:
        places[files.name] = rows_of_files(files)
    return {place: dict(content) for place, content in places.items()}


def differences(undisturbed: Mapping[str, Content], found: Mapping[str, Content]) -> list[Difference]:
    """The places that differ, with the first rows that do."""
    different = []
    for place in undisturbed:
        before, after = Counter(undisturbed[place]), Counter(found[place])
        missing, extra = before - after, after - before
        if missing or extra:
            samples = [f"missing {row}" for row in sorted(missing)[:2]]
            samples += [f"too many {row}" for row in sorted(extra)[:2]]
            counts = {"missing": missing.total(), "extra": extra.total()}
            different.append(Difference(place=place, **counts, samples=tuple(sample[:300] for sample in samples)))
    return different


def left_out(pipeline: Pipeline, dsn: str) -> list[str]:
    """The columns of targets that are not compared: their values are not made of records alone."""
    with closing(psycopg2.connect(dsn)) as session:
        return [
            f"{table.table}.{name}" for table in pipeline.targets for name in _own_columns(session, pipeline, table)[1]
        ]


def _counted(rows: Iterable[Sequence[str]]) -> Content:
    return Counter(row for (row,) in rows)


def _own_columns(session: Connection, pipeline: Pipeline, table: PostgresTable) -> tuple[list[str], list[str]]:
    """The columns of a table to compare, and those that the database or the epoch's number fills."""
    schema, name = split_table(table.table)
    rows = query(
        session,
        "SELECT attname, atthasdef OR attidentity <> '' FROM pg_catalog.pg_attribute WHERE attnum > 0"
        " AND NOT attisdropped AND attrelid = format('%I.%I', {schema}::text, {name}::text)::regclass ORDER BY attnum",
        schema=sql.Literal(schema), name=sql.Literal(name),
    )  # fmt: skip
    declared = {*(table.columns or pipeline.parsed_columns), *table.key}
    own = [
        column
        for column, filled in rows
        if column != "_epoch" and column != table.insert_time and (column in declared or not filled)
    ]
    return own, [column for column, _ in rows if column not in own]


def _table(session: Connection, pipeline: Pipeline, table: PostgresTable) -> Content:
    schema, name = split_table(table.table)
    columns = joined(
        sql.SQL("{}::text").format(sql.Identifier(column)) for column in _own_columns(session, pipeline, table)[0]
    )
    statement = "SELECT to_jsonb(ARRAY[{columns}])::text FROM {schema}.{name}"
    return _counted(query(session, compose(statement, columns=columns, schema=schema, name=name)))


def _topic(kafka: Mapping[str, str], sink: KafkaTopic, topic: str) -> Content:
    found: Counter[str] = Counter()
    # Without key and number, the client's turn chooses the partition.
    chosen = bool(sink.key or sink.partition) or isinstance(sink.value, str)
    with RecordReader(kafka, patience=30).session() as session:
        for partition in range(session.partitions(topic) or 0):
            start, end = session.log(topic, partition)
            for columns in session.read(topic, partition, OffsetRange(start=start, until=end)) if end > start else ():
                for record in zip(columns["key"], columns["value"], columns["headers"], strict=True):
                    found[json.dumps([partition if chosen else None, *map(_plain, record)], ensure_ascii=False)] += 1
    return found if sink.semantics == "exactly_once" else Counter(found.keys())


def rows_of_files(sink: Files | CustomSink | Any) -> Content:
    """The rows of a folder's committed epochs, whatever documents and digits they hold."""
    path, form = (sink.path, sink.format) if isinstance(sink, Files) else (sink.options["path"], "json")
    found: Counter[str] = Counter()
    for epoch in committed_files(path):
        for file in epoch.files:
            with Path(file).open("rb") as opened:
                for some in rows_in(opened, form, sorted(sink.written)):
                    rows = zip(*some.values(), strict=True)
                    found.update(json.dumps([_plain(value) for value in row], ensure_ascii=False) for row in rows)
    return found


def _plain(value: Any) -> Any:
    match value:
        case None | str():
            return value
        case bytes():
            return repr(value)[1:]
        case list() | tuple() | dict():
            return repr(value)
    return str(value)
