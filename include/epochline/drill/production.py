"""What a drill takes from production, by reading alone: the next records, partitions, and definitions of tables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import psycopg2
from psycopg2 import sql

from epochline.adapters import Adapters
from epochline.config.logins import complete, log_in
from epochline.declare.names import ledger_prefix, split_table
from epochline.declare.pipeline import Pipeline
from epochline.errors import LedgerUnavailableError, one_line
from epochline.kafka.outgoing import Outgoing
from epochline.kafka.records import RecordReader
from epochline.local.postgres import binaries
from epochline.postgres.queries.statements import Connection, compose, query
from epochline.protocol.offsets import OffsetRange

_PATIENCE_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRange:
    """The offsets of a partition that a drill copies; ``head`` is the next offset of production, if it has one."""

    topic: str
    partition: int
    start: int
    until: int
    head: int | None

    def __str__(self) -> str:
        committed = max(0, min(self.until, self.head or 0) - self.start)
        known = f", {committed} of them committed in production already" if committed else ""
        return f"{self.topic}-{self.partition} [{self.start}, {self.until}){known}"


def ranges_of(adapters: Adapters, declared: Pipeline, records: int) -> list[CopiedRange]:
    """The next ``records`` offsets of all partitions together; where fewer wait, also those before.

    Raises:
        SourceError: Kafka does not answer, or refuses.
        LedgerUnavailableError: PostgreSQL does not answer.
    """
    heads = _heads(adapters.postgres_dsn(declared.postgres_connection), declared.name)
    view = adapters.offsets(declared).look(declared.source)
    logs = [log for log in view.partitions if log.last_stable > log.log_start]
    ranges = []
    left, partitions = records, len(logs)
    for log in sorted(logs, key=lambda log: log.last_stable - log.log_start):
        # What a short log leaves goes to the longer ones.
        share = -(-left // partitions)
        head = heads.get((log.tp.topic, log.tp.partition))
        begin = min(max(log.log_start if head is None else head, log.log_start), log.last_stable)
        until = min(log.last_stable, begin + share)
        start = max(log.log_start, until - share)
        ranges.append(CopiedRange(topic=log.tp.topic, partition=log.tp.partition, start=start, until=until, head=head))
        left, partitions = left - (until - start), partitions - 1
    return sorted((one for one in ranges if one.until > one.start), key=lambda one: (one.topic, one.partition))


def partitions_of(adapters: Adapters, declared: Pipeline, report: Callable[[str], None]) -> dict[str, int]:
    """How many partitions each topic has that the pipeline reads or writes; 1 for one that is missing.

    ``report`` gets a line for each that is.
    """
    counts: dict[str, int] = {}
    for log in adapters.offsets(declared).look(declared.source).partitions:
        name = _own_name(declared, log.tp.topic)[1]
        counts[name] = max(counts.get(name, 0), log.tp.partition + 1)
    for sink in declared.topics:
        with RecordReader(adapters.kafka_settings(sink.connection), _PATIENCE_SECONDS).session() as session:
            for topic in sink.topics:
                if (there := session.partitions(topic)) is None:
                    report(f"topic {topic} does not exist in production; it has one partition here")
                counts[topic] = there or 1
    return counts


def records_of(
    adapters: Adapters, declared: Pipeline, ranges: Sequence[CopiedRange]
) -> Iterator[tuple[str, int, Outgoing]]:
    """The records of the ranges, each with its topic and partition, read without a consumer group."""
    for name, source in declared.kafka_sources.items():
        with RecordReader(adapters.kafka_settings(source.connection), _PATIENCE_SECONDS).session() as session:
            for one in ranges:
                owner, topic = _own_name(declared, one.topic)
                if owner != name:
                    continue
                for columns in session.read(topic, one.partition, OffsetRange(start=one.start, until=one.until)):
                    fields = (columns[field] for field in ("key", "value", "headers", "timestamp"))
                    for key, value, headers, moment in zip(*fields, strict=True):
                        stamp = moment if moment and moment > 0 else None
                        yield topic, one.partition, Outgoing(key, value, tuple(headers or ()), timestamp_ms=stamp)


def _own_name(declared: Pipeline, topic: str) -> tuple[str, str]:
    """The input that reads a topic, and the topic as Kafka names it."""
    for name in declared.inputs:
        prefix = ledger_prefix(name)
        if prefix and topic.startswith(prefix):
            return name, topic.removeprefix(prefix)
    return "", topic


@contextmanager
def only_reading(dsn: str) -> Iterator[Connection]:
    """A session in which PostgreSQL refuses every write."""
    try:
        with closing(log_in(dsn, application_name="epochline drill", connect_timeout=10)) as session:
            session.set_session(readonly=True)
            yield session
    except psycopg2.OperationalError as error:
        raise LedgerUnavailableError(f"PostgreSQL cannot be reached: {one_line(error)}") from None


def _heads(dsn: str, pipeline: str) -> Mapping[tuple[str, int], int]:
    with only_reading(dsn) as session:
        if query(session, "SELECT to_regclass('epochline.heads')") == [(None,)]:
            return {}  # It never ran there.
        statement = "SELECT topic, partition, next_offset FROM epochline.heads WHERE pipeline = {pipeline}"
        rows = query(session, compose(statement, pipeline=sql.Literal(pipeline)))
    return {(topic, partition): offset for topic, partition, offset in rows}


_FUNCTIONS = """
SELECT DISTINCT n.nspname, pg_catalog.pg_get_functiondef(p.oid) FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgrelid = ANY({tables}::oid[]) AND NOT t.tgisinternal AND n.nspname NOT IN ('epochline', 'pg_catalog')
"""
_TYPES = """
SELECT DISTINCT n.nspname, format(CASE t.typtype WHEN 'e' THEN 'CREATE TYPE %I.%I AS ENUM (%s)' ELSE
       'CREATE DOMAIN %I.%I AS %s' END, n.nspname, t.typname, CASE t.typtype WHEN 'e' THEN
       (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder) FROM pg_catalog.pg_enum l
        WHERE l.enumtypid = t.oid) ELSE pg_catalog.format_type(t.typbasetype, t.typtypmod) ||
       coalesce((SELECT string_agg(' ' || pg_catalog.pg_get_constraintdef(c.oid), '') FROM pg_catalog.pg_constraint c
        WHERE c.contypid = t.oid), '') END)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type f ON f.oid = a.atttypid
JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN f.typelem <> 0 THEN f.typelem ELSE f.oid END
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = ANY({tables}::oid[]) AND t.typtype IN ('e', 'd') AND a.attnum > 0 AND NOT a.attisdropped
"""


def definitions_of(dsn: str, declared: Pipeline, report: Callable[[str], None]) -> str:
    """SQL that makes the pipeline's targets as they are in production, with their triggers and keys, and no row.

    ``report`` gets a line for each target that does not exist there or may not be read: its declaration makes it.
    """
    with only_reading(dsn) as session:
        found = {}
        for target in declared.targets:
            schema, table = split_table(target.table)
            [(oid, readable)] = query(
                session,
                "SELECT c, has_table_privilege(c, 'SELECT') FROM (SELECT to_regclass(format('%I.%I',"
                " {schema}::text, {table}::text))::oid) AS one (c)",
                schema=sql.Literal(schema), table=sql.Literal(table),
            )  # fmt: skip
            if readable:
                found[target.table] = oid
            else:
                why = "does not exist in production" if oid is None else "may not be read by this login"
                report(f"{target.table} {why}; its declaration makes it")
        if not found:
            return ""
        oids = sql.Literal(list(found.values()))
        types, functions = (query(session, compose(text, tables=oids)) for text in (_TYPES, _FUNCTIONS))
        schemas = {split_table(table)[0] for table in found} | {schema for schema, _ in (*types, *functions)}
        made = [compose("CREATE SCHEMA IF NOT EXISTS {name}", name=schema).as_string(session) for schema in schemas]
    made += [text for _, text in types] + [text for _, text in functions]
    dumped = _dump(dsn, list(found))
    return ";\n".join(["SET check_function_bodies = off", *made, dumped])


def _dump(dsn: str, tables: Sequence[str]) -> str:
    patterns = ['"{}"."{}"'.format(*(part.replace('"', '""') for part in split_table(table))) for table in tables]
    command = [
        str(binaries() / "pg_dump"), "--schema-only", "--no-owner", "--no-privileges", "--no-publications",
        "--no-tablespaces", "--no-security-labels", "--restrict-key=drill",
        *(f"--table-and-children={pattern}" for pattern in patterns),
    ]  # fmt: skip
    done = client(command, complete(dsn))
    if done.returncode != 0:
        raise LedgerUnavailableError(f"The targets' definitions cannot be read: {one_line(Exception(done.stderr))}")
    return done.stdout


def client(command: Sequence[str], dsn: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of PostgreSQL; its password is in the environment, where only this account sees it."""
    at = urlsplit(dsn)
    login, _, host = at.netloc.rpartition("@")
    name, _, password = login.partition(":")
    plain = at._replace(netloc=f"{name}@{host}" if name else host).geturl()
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [*command, f"--dbname={plain}"], input=text, capture_output=True, text=True, check=False,
        env={**kept, "PGPASSWORD": unquote(password), "PGAPPNAME": "epochline drill", "LC_ALL": "C"},
    )  # fmt: skip
