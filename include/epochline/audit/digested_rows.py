"""What epochs should have shown in a sink, and what it shows, as digests of 64 bits per column: counted in PostgreSQL.

Rows belong together by their identity: the place of a record, a key, or without one the whole row. Equal rows are
paired copy by copy. Of what is left, two rows of one identity, one of either side, are a row that changed.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg2 import sql

from epochline.arrow.cast.types import record_schema
from epochline.audit.session import AuditSession
from epochline.postgres.queries.statements import change, compose, defined_columns, query

_COLUMNS = {
    "epoch": "bigint", "id": "bytea", "content": "bytea", "topic": "text", "partition": "integer", "offset": "bigint",
    "row": "integer", "producer": "bigint",
}  # fmt: skip
_SIZE = 8

_COMPARE = """
INSERT INTO {differences}
WITH e AS (
    SELECT *, row_number() OVER (PARTITION BY id, content ORDER BY judged DESC, number) AS copy
    FROM (SELECT *, CASE WHEN epoch = ANY ({due}) THEN 0 WHEN {away} THEN 1 ELSE 2 END AS judged FROM {expected}) r
), t AS (
    SELECT *, row_number() OVER (PARTITION BY id, content ORDER BY number) AS copy FROM {found}
), left_over AS (
    SELECT coalesce(e.id, t.id) AS id, e.number AS expected, t.number AS found, e.judged, k.id IS NOT NULL AS known
    FROM e FULL JOIN t ON e.id = t.id AND e.content = t.content AND e.copy = t.copy
    LEFT JOIN (SELECT DISTINCT id, content FROM {expected}) k ON k.id = t.id AND k.content = t.content
    WHERE e.id IS NULL OR t.id IS NULL
), lacking AS (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY expected) AS nth FROM left_over WHERE judged = 2
), strange AS (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY found) AS nth FROM left_over
    WHERE found IS NOT NULL AND NOT known
)
SELECT CASE WHEN l.id IS NULL THEN 'extra' WHEN s.id IS NULL THEN 'missing' ELSE 'changed' END, l.expected, s.found
FROM lacking l FULL JOIN strange s ON l.id = s.id AND l.nth = s.nth AND {paired}
UNION ALL SELECT 'doubled', NULL, found FROM left_over WHERE known
UNION ALL SELECT CASE judged WHEN 1 THEN 'away' ELSE 'due' END, expected, NULL FROM left_over WHERE judged < 2
"""
_OTHERS = """
WITH producer AS (
    SELECT f.producer, count(*) AS records, count(*) FILTER (WHERE d.kind = 'extra') AS extra
    FROM {found} f LEFT JOIN {differences} d ON d.found = f.number GROUP BY 1
)
UPDATE {differences} d SET kind = 'other' FROM {found} f
WHERE d.kind = 'extra' AND f.number = d.found AND NOT EXISTS (
    SELECT FROM producer p WHERE p.producer = f.producer AND p.extra * 2 < p.records)
"""


Place = tuple[str | None, int | None, int | None, int | None]
"""Topic, partition, offset, and the number of the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOfSink:
    """A difference: the epoch, the place of the record that it is of, the place in the sink, and what changed."""

    kind: str
    epoch_id: int | None
    record: Place | None
    place: Place | None
    columns: Sequence[str]


class DigestedRows:
    """The rows of one sink, in temporary tables of one session. Every call is one transaction.

    ``columns`` are the names of what is compared; ``number`` tells the tables of several sinks apart.
    """

    def __init__(self, connection: AuditSession, columns: Sequence[str], number: int) -> None:
        self._connection, self._compared = connection, list(columns)
        self._names = {part: f"digested_{part}_{number}" for part in ("expected", "found", "differences")}
        self._tables = {part: sql.Identifier("pg_temp", name) for part, name in self._names.items()}
        columns_of = compose("number bigint GENERATED ALWAYS AS IDENTITY, {columns}", columns=defined_columns(_COLUMNS))
        self._definitions = {
            "expected": columns_of, "found": columns_of,
            "differences": sql.SQL("kind text, expected bigint, found bigint"),
        }  # fmt: skip
        with connection.snapshot():
            for part, definition in self._definitions.items():
                change(connection, "CREATE TEMP TABLE {t} ({c})", t=self._names[part], c=definition)

    def clear(self) -> None:
        """Forget every row."""
        with self._connection.snapshot():
            change(self._connection, "TRUNCATE {expected}, {found}, {differences}", **self._tables)

    def expect(self, **columns: Sequence[Any]) -> None:
        """Add rows that the sink should show; a column that is not given is NULL."""
        self._add("expected", columns)

    def find(self, **columns: Sequence[Any]) -> None:
        """Add rows that the sink shows; a column that is not given is NULL."""
        self._add("found", columns)

    def _add(self, part: str, columns: dict[str, Sequence[Any]]) -> None:
        schema, rows = record_schema(_COLUMNS), len(columns["id"])
        if not rows:
            return
        arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in schema]
        with self._connection.snapshot() as session:
            session.copy_rows(self._tables[part], _COLUMNS, pa.RecordBatch.from_arrays(arrays, schema=schema))

    def leave_out(self, epochs: Sequence[int]) -> None:
        """Forget the rows of some epochs."""
        with self._connection.snapshot():
            for part in ("expected", "found"):
                statement = "DELETE FROM {table} WHERE epoch = ANY ({epochs})"
                change(self._connection, statement, table=self._tables[part], epochs=list(epochs))

    def held_after(self, topic: str, partition: int) -> int | None:
        """The newest epoch that the first record of a partition may be of; None if no record there is of an epoch."""
        statement = (
            "SELECT max(e.epoch) FROM {expected} e JOIN (SELECT id, content FROM {found} f JOIN (SELECT DISTINCT id,"
            " content FROM {expected}) k USING (id, content) WHERE topic = {topic} AND partition = {partition}"
            " ORDER BY number LIMIT 1) first USING (id, content)"
        )
        with self._connection.snapshot():
            where = {"topic": sql.Literal(topic), "partition": partition}
            rows = query(self._connection, statement, **where, **self._tables)
        return None if rows[0][0] is None else int(rows[0][0])

    def compare(
        self, *, due: Sequence[int] = (), away: int | None = None, all_away: bool = False, paired: bool = True,
        others: bool = False,
    ) -> dict[str, int]:  # fmt: skip
        """Compare, and return the number of rows by kind of difference.

        Beside missing, doubled, changed and extra: ``away``, rows that the sink need not hold any more, ``due``, rows
        of an epoch that it need not show yet, and ``other``, rows of another program.

        Args:
            due: epochs that the sink may not show yet.
            away: the newest epoch of which rows may be gone.
            all_away: whether rows of any epoch may be gone.
            paired: whether a lacking row and a strange one of the same identity are one that changed.
            others: whether a strange row is only an extra one if its producer wrote mostly rows of these epochs.
        """
        gone = compose("epoch <= {away}", away=away) if away is not None else sql.SQL("true" if all_away else "false")
        with self._connection.snapshot():
            for part in ("expected", "found"):
                change(self._connection, "ANALYZE {table}", table=self._tables[part])
            change(
                self._connection, _COMPARE, due=list(due), away=gone,
                paired=sql.SQL("true" if paired else "false"), **self._tables,
            )  # fmt: skip
            if others:
                change(self._connection, _OTHERS, **self._tables)
            counted = query(self._connection, "SELECT kind, count(*) FROM {differences} GROUP BY 1", **self._tables)
        return {kind: int(number) for kind, number in counted}

    def sample(self, kinds: Sequence[str], most: int) -> Iterator[RowOfSink]:
        """At most ``most`` differences of these kinds, in the order of the records."""
        statement = (
            "SELECT d.kind, coalesce(e.epoch, f.epoch), e.topic, e.partition, e.offset, e.row, f.topic, f.partition,"
            " f.offset, f.row, e.content, f.content FROM (SELECT * FROM {differences} WHERE kind = ANY ({kinds})"
            " ORDER BY expected, found LIMIT {most}) d LEFT JOIN {expected} e ON e.number = d.expected"
            " LEFT JOIN {found} f ON f.number = d.found ORDER BY d.expected, d.found"
        )
        with self._connection.snapshot():
            parts = {"kinds": list(kinds), "most": most, **self._tables}
            rows = query(self._connection, statement, **parts)
        for kind, epoch, *places, was, now in rows:
            record, place = (None if at[0] is None else at for at in (tuple(places[:4]), tuple(places[4:])))
            yield RowOfSink(kind=kind, epoch_id=epoch, record=record, place=place, columns=self._changed(was, now))

    def _changed(self, was: memoryview | None, now: memoryview | None) -> list[str]:
        if was is None or now is None:
            return []
        slices = [slice(at * _SIZE, (at + 1) * _SIZE) for at in range(len(self._compared))]
        return [name for name, part in zip(self._compared, slices, strict=True) if was[part] != now[part]]


def digested(*columns: Sequence[Any]) -> list[bytes]:
    """Per row, the digest of each column's value, one after the other."""
    return [b"".join(row) for row in zip(*(map(_digest, column) for column in columns), strict=True)]


def _digest(value: Any) -> bytes:
    data = b"b" + value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_SIZE).digest()
