"""Compares the rows that records should have given with a table that another program wrote, inside PostgreSQL.

Rows belong together by their identity: the columns of a key, or those that hold the place of a record. Under one
identity the rows of both sides are counted by their values, NULL as a value like any other. So equal rows that stand
twice are found too, and a key of NULLs is compared. Numbers are equal whatever their scale, and JSON by its content.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from epochline.arrow.stage.encoding import CopyEncoder
from epochline.audit.session import AuditSession
from epochline.declare.columns import DELETED, STAGED_LINEAGE
from epochline.declare.names import order_column, split_table
from epochline.declare.table import PostgresTable
from epochline.errors import ConfigurationError
from epochline.postgres.queries.statements import change, compose, defined_columns, joined, names, query
from epochline.postgres.targets.columns import TargetColumn
from epochline.postgres.targets.conversion import count_money_as_the_database

_EXPECTED, _ELSEWHERE = sql.Identifier("pg_temp", "foreign_row"), sql.Identifier("pg_temp", "foreign_elsewhere")
_RANGE, _FOUND = sql.Identifier("pg_temp", "foreign_range"), sql.Identifier("pg_temp", "foreign_difference")

_PLACE = sql.SQL("ARRAY[{topic}::text, {partition}::text, lpad({offset}::text, 20, '0'), {row}::text]")

_SEVERAL = """
    least(lack, surplus) AS changed, lack - least(lack, surplus) AS missing,
    CASE WHEN known THEN surplus - least(lack, surplus) ELSE 0 END AS doubled,
    CASE WHEN known THEN 0 ELSE surplus END AS extra
"""
_ONE = """
    (known AND have > 0 AND fit = 0)::int AS changed, (known AND have = 0 AND NOT deleted)::int AS missing,
    CASE WHEN known THEN greatest(have - 1, 0) ELSE 0 END AS doubled, CASE WHEN known THEN 0 ELSE have END AS extra
"""
_COMPARE = """
WITH e AS (
    SELECT _id, CASE WHEN NOT _gone THEN _values END AS _values, count(*) AS n, min(_place) AS _place, _gone
    FROM ({expected}) AS r GROUP BY 1, 2, _gone
), t AS (
    SELECT _id, _values, count(*) AS n, min(_place) AS _place FROM ({found}) AS r GROUP BY 1, 2
), j AS (
    SELECT coalesce(e._id, t._id) AS _id, e._values AS e_values, t._values AS t_values, e._place AS e_place,
        t._place AS t_place, coalesce(e.n, 0) AS e_n, coalesce(t.n, 0) AS t_n, coalesce(e._gone, false) AS gone
    FROM e FULL JOIN t ON e._id = t._id AND e._values = t._values
), d AS (
    SELECT _id, sum(CASE WHEN gone THEN 0 ELSE greatest(e_n - t_n, 0) END) AS lack,
        sum(CASE WHEN gone THEN 0 ELSE greatest(t_n - e_n, 0) END) AS surplus, sum(t_n) AS have,
        coalesce(sum(t_n) FILTER (WHERE e_n > 0), 0) AS fit, bool_or(e_n > 0 AND NOT gone) AS known,
        bool_or(gone) AS deleted, min(e_values) FILTER (WHERE e_n > t_n) AS e_values,
        min(t_values) FILTER (WHERE t_n > e_n) AS t_values,
        coalesce(min(e_place) FILTER (WHERE e_n > t_n), min(e_place), min(t_place)) AS place
    FROM j GROUP BY _id
), k AS (SELECT _id, place, e_values, t_values, {kinds} FROM d)
INSERT INTO {differences} SELECT _id, place, missing, doubled, extra, changed, ARRAY(
    SELECT name FROM unnest({columns}, e_values, t_values) AS u (name, e, t) WHERE e IS DISTINCT FROM t
), false FROM k WHERE missing > 0 OR doubled > 0 OR extra > 0 OR changed > 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells which rows belong together: columns of the expected rows, each with the table's column."""

    columns: Mapping[str, str]
    by: Literal["key", "place"]

    def __str__(self) -> str:
        return f"{self.by} ({', '.join(self.columns.values())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDifference:
    """Rows of one identity that differ: ``number`` of one kind, and the first record's place, as far as it is known.

    ``kind`` is ``missing`` (no row of a record), ``doubled`` (a row too many), ``changed`` (other values, in
    ``columns``) or ``extra`` (a row of no record, or of a key that its last record deleted).
    """

    table: str
    kind: str
    number: int
    topic: str | None
    partition: int | None
    offset: int | None
    row: int | None
    columns: Sequence[str] = ()

    def __str__(self) -> str:
        place = "no place" if self.partition is None else f"{self.topic or 'partition'}-{self.partition}"
        offset = "" if self.offset is None else f" offset {self.offset}"
        row = f" row {self.row}" if self.row else ""
        several = f" ({self.number} rows)" if self.number > 1 else ""
        said = f": {', '.join(self.columns)}" if self.columns else ""
        return f"{self.table}: {self.kind}: {place}{offset}{row}{several}{said}"


class ForeignRows:
    """The expected rows of one table, in temporary tables of one session. Every call is one transaction.

    Whatever reads the table is a read-only transaction.

    Args:
        connection: of a login with SELECT on the table.
        sink: the declaration of the table.
        target: the table's columns.
        columns: the columns of the expected rows with their types, as writers fill them.
        identity: what tells which rows belong together.
    """

    def __init__(
        self, connection: AuditSession, sink: PostgresTable, target: Mapping[str, TargetColumn],
        columns: Mapping[str, str], identity: Identity,
    ) -> None:  # fmt: skip
        self._connection, self._sink, self._target = connection, sink, target
        self._columns, self._identity = columns, identity
        self._own = [name for name in sink.columns or () if name not in identity.columns]
        self._table = sql.Identifier(*split_table(sink.table))
        self.by_key = identity.by == "key"

    @property
    def table(self) -> str:
        """The table's name in the declaration."""
        return self._sink.table

    @property
    def one_row(self) -> bool:
        """Whether the table has at most one row of a key, whatever number of records has it."""
        return self.by_key and (self._sink.mode == "upsert" or self._sink.repeats == "skip")

    def prepare(self, ranges: Sequence[tuple[str, int, int, int]]) -> None:
        """Create the temporary tables for records of ranges: topic, partition, first offset, and the one after the last."""
        with self._connection.snapshot():
            for table in (_EXPECTED, _ELSEWHERE, _RANGE, _FOUND):
                change(self._connection, "DROP TABLE IF EXISTS {table}", table=table)
            columns = defined_columns(self._columns)
            change(self._connection, "CREATE TEMP TABLE foreign_row ({columns})", columns=columns)
            change(self._connection, "CREATE TEMP TABLE foreign_elsewhere ({columns})", columns=columns)
            change(
                self._connection,
                "CREATE TEMP TABLE foreign_difference (id text[], place text[], missing bigint, doubled bigint,"
                " extra bigint, changed bigint, columns text[], elsewhere boolean)",
            )
            change(
                self._connection,
                "CREATE TEMP TABLE foreign_range (topic text, partition bigint, first bigint, until bigint)",
            )
            for values in ranges:
                listed = joined(map(sql.Literal, values))
                change(self._connection, "INSERT INTO {table} VALUES ({values})", table=_RANGE, values=listed)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows that the table should have."""
        with self._connection.snapshot():
            self._copy(_EXPECTED, rows)

    def _copy(self, table: sql.Composable, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        encoder = CopyEncoder(self._columns)
        data = b"".join((encoder.begin(), encoder.encode(rows.select(list(self._columns))), encoder.end()))
        statement = compose(
            "COPY {table} ({columns}) FROM STDIN WITH ({options})",
            table=table, columns=names(self._columns), options=sql.SQL(encoder.copy_options),
        )  # fmt: skip
        with closing(self._connection.cursor()) as cursor:
            cursor.copy_expert(statement, io.BytesIO(data), size=1 << 16)

    def compare(self) -> None:
        """Compare, and keep the differences in the session.

        Raises:
            ConfigurationError: a column that should hold a place holds no number, or the login may not read the table.
        """
        statement = compose(
            _COMPARE, expected=self._expected(), found=self._found(), kinds=sql.SQL(_ONE if self.one_row else _SEVERAL),
            differences=_FOUND, columns=_texts(sql.Literal(name) for name in self._own),
        )  # fmt: skip
        with self._connection.snapshot():
            change(self._connection, "ANALYZE {expected}", expected=_EXPECTED)
        try:
            with self._connection.snapshot(read_only=True):
                count_money_as_the_database(self._connection, self._target.values())
                change(self._connection, statement)
        except psycopg2.errors.InsufficientPrivilege:
            raise ConfigurationError(
                f"the login may not read {self._sink.table}: it needs SELECT on the table and USAGE on its schema."
            ) from None
        except psycopg2.DataError as error:
            raise ConfigurationError(
                f"{self._sink.table}: values cannot be compared by {self._identity} ({error.diag.message_primary})."
            ) from None

    def _value(self, name: str, row: str, column: str | None = None) -> sql.Composable:
        """A value in the target's type, as a text that equal values share."""
        shape = self._target[column or name]
        value = compose(
            "CAST({value} AS {kind})", value=sql.Identifier(row, name if row == "e" else column or name),
            kind=sql.SQL(shape.base),
        )  # fmt: skip
        if not shape.arrays and shape.plain == "numeric":
            value = compose("trim_scale({value})", value=value)
        if not shape.arrays and shape.plain == "json":
            value = compose("CAST({value} AS jsonb)", value=value)
        return compose("CAST({value} AS text)", value=value)

    def _id(self, row: str) -> sql.Composable:
        if self.by_key:
            return _texts(self._value(name, row) for name in self._identity.columns)
        return _texts(
            compose(
                "CAST({value} AS text)" if name == "_topic" else "CAST(CAST({value} AS bigint) AS text)",
                value=sql.Identifier(row, name if row == "e" else column),
            )
            for name, column in self._identity.columns.items()
        )

    def _expected(self) -> sql.Composable:
        upsert = self._sink.mode == "upsert"
        rows = compose(
            "SELECT {id} AS _id, {values} AS _values, {place} AS _place, {gone} AS _gone, {best} AS _best FROM {table} e",
            id=self._id("e"), values=_texts(self._value(name, "e") for name in self._own),
            place=_PLACE.format(**{name.lstrip("_"): sql.Identifier("e", name) for name in STAGED_LINEAGE}),
            gone=sql.Identifier("e", DELETED) if upsert else sql.SQL("false"), best=self._best(), table=_EXPECTED,
        )  # fmt: skip
        return compose("SELECT * FROM ({rows}) AS r WHERE _best = 1", rows=rows)

    def _best(self) -> sql.Composable:
        """1 for the rows that may stand: of several rows of a key, one of each partition, or the highest."""
        if not self.one_row:
            return sql.SQL("1")
        if self._sink.order_by and self._sink.mode == "upsert":
            order = joined(compose("e.{c} DESC NULLS LAST", c=order_column(name)) for name in self._sink.order_by)
            return compose("rank() OVER (PARTITION BY {id} ORDER BY {order})", id=self._id("e"), order=order)
        way = "DESC" if self._sink.mode == "upsert" else "ASC"
        return compose(
            f"row_number() OVER (PARTITION BY {{id}}, _topic, _partition ORDER BY _offset {way}, _row {way})",
            id=self._id("e"),
        )

    def _found(self) -> sql.Composable:
        places = self._identity.columns if not self.by_key else {}
        columns = {
            name.lstrip("_"): sql.Identifier("t", places[name]) if name in places else sql.SQL("NULL")
            for name in STAGED_LINEAGE
        }
        if self.by_key:
            within = compose("{id} IN (SELECT {expected} FROM {table} e)", id=self._id("t"), expected=self._id("e"),
                             table=_EXPECTED)  # fmt: skip
            place = sql.SQL("NULL::text[]")
        else:
            within = compose(
                "EXISTS (SELECT FROM {ranges} r WHERE {topic} AND r.partition = CAST({partition} AS bigint) AND"
                " CAST({offset} AS bigint) >= r.first AND CAST({offset} AS bigint) < r.until)",
                ranges=_RANGE, partition=columns["partition"], offset=columns["offset"],
                topic=compose("r.topic = {topic}", topic=columns["topic"]) if "_topic" in places else sql.SQL("true"),
            )  # fmt: skip
            place = _PLACE.format(**columns)
        return compose(
            "SELECT {id} AS _id, {values} AS _values, {place} AS _place FROM {table} t WHERE {within}",
            id=self._id("t"), values=_texts(self._value(name, "t") for name in self._own), place=place,
            table=self._table, within=within,
        )  # fmt: skip

    def without_place(self) -> int:
        """How many rows of the table have a NULL where a place should be."""
        if self.by_key:
            return 0
        empty = joined((compose("{c} IS NULL", c=name) for name in self._identity.columns.values()), " OR ")
        with self._connection.snapshot(read_only=True):
            counted = query(self._connection, compose("SELECT count(*) FROM {t} WHERE {e}", t=self._table, e=empty))
        return int(counted[0][0])

    @property
    def asks_elsewhere(self) -> bool:
        """Whether records outside the ranges may explain a difference: by a place, none can."""
        if not self.by_key:
            return False
        with self._connection.snapshot():
            found = query(
                self._connection,
                compose("SELECT 1 FROM {d} WHERE {upsert} OR doubled + changed + extra > 0 LIMIT 1", d=_FOUND,
                        upsert=sql.Literal(self._sink.mode == "upsert")),
            )  # fmt: skip
        return bool(found)

    def elsewhere(self, rows: pa.RecordBatch) -> None:
        """Note that records outside the ranges have the keys of these rows."""
        with self._connection.snapshot():
            self._copy(_ELSEWHERE, rows)
            change(
                self._connection,
                "UPDATE {found} SET elsewhere = true WHERE NOT elsewhere AND id IN (SELECT {id} FROM {table} e)",
                found=_FOUND, id=self._id("e"), table=_ELSEWHERE,
            )  # fmt: skip
            change(self._connection, "TRUNCATE {table}", table=_ELSEWHERE)

    def excuse(self) -> int:
        """Take back what records outside the ranges may explain; return of how many keys something was taken back."""
        upsert, skip = self._sink.mode == "upsert", self._sink.repeats == "skip"
        if upsert:  # one row per key at any time, of any record
            excused, wholly = "missing = 0, extra = 0, changed = 0", "missing + extra + changed > 0"
        elif skip:  # the first record of the key may be outside
            excused, wholly = "changed = 0", "changed > 0"
        else:  # a row too many may be another record's, and so may one with other values
            excused, wholly = "missing = missing + changed, changed = 0, doubled = 0", "doubled + changed > 0"
        with self._connection.snapshot():
            taken = query(
                self._connection,
                compose(f"UPDATE {{d}} SET {excused} WHERE elsewhere AND {wholly} RETURNING 1", d=_FOUND),
            )
        return len(taken)

    def totals(self) -> dict[str, int]:
        """The number of rows of each kind of difference."""
        kinds = ("missing", "doubled", "extra", "changed")
        sums = joined(compose("coalesce(sum({k}), 0)", k=kind) for kind in kinds)
        with self._connection.snapshot():
            (counts,) = query(self._connection, compose("SELECT {sums} FROM {d}", sums=sums, d=_FOUND))
        return {kind: int(count) for kind, count in zip(kinds, counts, strict=True)}

    def sample(self, most: int) -> list[ForeignDifference]:
        """At most ``most`` differences, in the order of the records."""
        statement = compose(
            "SELECT place, k.kind, k.number, columns FROM {d}, LATERAL (VALUES ('missing', missing), ('doubled',"
            " doubled), ('extra', extra), ('changed', changed)) AS k (kind, number) WHERE k.number > 0"
            " ORDER BY place, 2 LIMIT {most}",
            d=_FOUND, most=most,
        )  # fmt: skip
        with self._connection.snapshot():
            rows = query(self._connection, statement)
        return [
            ForeignDifference(
                table=self._sink.table, kind=kind, number=number, topic=place[0], partition=_whole(place[1]),
                offset=_whole(place[2]), row=_whole(place[3]), columns=columns if kind == "changed" else (),
            )
            for place, kind, number, columns in ((at or [None] * 4, *rest) for at, *rest in rows)
        ]  # fmt: skip


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _texts(values: Iterable[sql.Composable]) -> sql.Composable:
    return compose("ARRAY[{values}]::text[]", values=joined(values))
