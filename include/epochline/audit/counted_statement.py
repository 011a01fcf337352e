"""The statement that compares the expected rows of a table with its rows; `epochline.audit.counted_rows` runs it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from psycopg2 import sql

from epochline.declare.columns import DELETED, STAGED_LINEAGE
from epochline.declare.names import order_column, split_table
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.statements import compose, joined
from epochline.postgres.targets.columns import TargetColumn

_PLACE = sql.SQL("ARRAY[{topic}::text, {partition}::text, lpad({offset}::text, 20, '0'), {row}::text]")
_NOWHERE = sql.SQL("NULL::text[]")

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
    SELECT identity, CASE WHEN NOT deleted THEN content END AS content, count(*) AS n, min(spot) AS spot, deleted
    FROM ({expected}) AS r GROUP BY 1, 2, deleted
), t AS (
    SELECT identity, content, count(*) AS n, min(spot) AS spot FROM ({found}) AS r GROUP BY 1, 2
), j AS (
    SELECT coalesce(e.identity, t.identity) AS identity, e.content AS e_values, t.content AS t_values,
        e.spot AS e_place, t.spot AS t_place, coalesce(e.n, 0) AS e_n, coalesce(t.n, 0) AS t_n,
        coalesce(e.deleted, false) AS gone
    FROM e FULL JOIN t ON e.identity = t.identity AND e.content = t.content
), d AS (
    SELECT identity, sum(CASE WHEN gone THEN 0 ELSE greatest(e_n - t_n, 0) END) AS lack,
        sum(CASE WHEN gone THEN 0 ELSE greatest(t_n - e_n, 0) END) AS surplus, sum(t_n) AS have,
        coalesce(sum(t_n) FILTER (WHERE e_n > 0), 0) AS fit, bool_or(e_n > 0 AND NOT gone) AS known,
        bool_or(gone) AS deleted, min(e_values) FILTER (WHERE e_n > t_n) AS e_values,
        min(t_values) FILTER (WHERE t_n > e_n) AS t_values,
        coalesce(min(e_place) FILTER (WHERE e_n > t_n), min(e_place), min(t_place)) AS place
    FROM j GROUP BY identity
), k AS (SELECT identity, place, e_values, t_values, {kinds} FROM d)
INSERT INTO {differences} SELECT identity, place, missing, doubled, extra, changed, ARRAY(
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


class Comparison:
    """Composes the statement for one table, whose temporary tables have names that end with ``number``.

    Args:
        sink: the declaration of the table.
        target: the table's columns.
        compared: the columns that are compared.
        identity: what tells which rows belong together.
        number: of the table in its session.
        newest: of the rows of a key, the one with the highest of these columns stands; None: by the declaration alone.
        within: the condition on a row ``t`` of the table that it must be one of the expected; None: it has the key of
            one of them, or a place in the ranges.
        located: whether the expected rows have the place of a record.
    """

    def __init__(
        self, sink: PostgresTable, target: Mapping[str, TargetColumn], compared: Iterable[str], identity: Identity,
        number: int = 0, newest: Sequence[str] | None = None, *, within: sql.Composable | None = None,
        located: bool = True,
    ) -> None:  # fmt: skip
        self._sink, self._target, self.identity = sink, target, identity
        self._newest, self._within, self._located = newest, within, located
        self._own = [name for name in compared if name not in identity.columns]
        self.table = sql.Identifier(*split_table(sink.table))
        self.by_key = identity.by == "key"
        self.names = {name: f"audited_{name}_{number}" for name in ("row", "elsewhere", "range", "difference")}
        self.rows, self.elsewhere, self.ranges, self.differences = (
            sql.Identifier("pg_temp", name) for name in self.names.values()
        )

    @property
    def one_row(self) -> bool:
        """Whether the table has at most one row of a key, whatever number of records has it."""
        return self.by_key and (self._sink.mode in ("upsert", "add") or self._sink.repeats == "skip")

    @property
    def statement(self) -> sql.Composable:
        """Puts the differences into their temporary table."""
        return compose(
            _COMPARE, expected=self._expected(), found=self._found(), kinds=sql.SQL(_ONE if self.one_row else _SEVERAL),
            differences=self.differences, columns=_texts(sql.Literal(name) for name in self._own),
        )  # fmt: skip

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

    def id_of(self, row: str) -> sql.Composable:
        """The identity of a row of the expected rows ``e`` or of the table ``t``, as texts."""
        if self.by_key:
            return _texts(self._value(name, row) for name in self.identity.columns)
        return _texts(
            compose(
                "CAST({value} AS text)" if name == "_topic" else "CAST(CAST({value} AS bigint) AS text)",
                value=sql.Identifier(row, name if row == "e" else column),
            )
            for name, column in self.identity.columns.items()
        )

    def _expected(self) -> sql.Composable:
        if self._sink.mode == "add":
            return compose(
                "SELECT {id} AS identity, {sums} AS content, NULL::text[] AS spot, false AS deleted FROM {table} e"
                " GROUP BY 1",
                id=self.id_of("e"), sums=_texts(self._sum(name) for name in self._own), table=self.rows,
            )  # fmt: skip
        upsert = self._sink.mode == "upsert"
        rows = compose(
            "SELECT {id} AS identity, {values} AS content, {place} AS spot, {gone} AS deleted, {best} AS rank"
            " FROM {table} e",
            id=self.id_of("e"), values=_texts(self._value(name, "e") for name in self._own),
            place=_place("e") if self._located else _NOWHERE,
            gone=sql.Identifier("e", DELETED) if upsert else sql.SQL("false"), best=self._best(), table=self.rows,
        )  # fmt: skip
        return compose("SELECT * FROM ({rows}) AS r WHERE rank = 1", rows=rows)

    def _sum(self, name: str) -> sql.Composable:
        shape = self._target[name]
        total = compose("CAST(sum({v}) AS {kind})", v=sql.Identifier("e", name), kind=sql.SQL(shape.base))
        return compose("CAST(trim_scale({t}) AS text)" if shape.plain == "numeric" else "CAST({t} AS text)", t=total)

    def _best(self) -> sql.Composable:
        """1 for the rows that may stand: of several rows of a key, one of each partition, or the highest."""
        if not self.one_row or (self._within is not None and self._sink.repeats == "skip"):
            return sql.SQL("1")  # of repeats, the first that was committed stands: no offset tells it
        if self._newest is not None:
            order = joined(compose("e.{c} DESC NULLS LAST", c=name) for name in self._newest)
            # Of equal rows, such as those that a transform makes of one record, any may stand.
            return compose("rank() OVER (PARTITION BY {id} ORDER BY {order})", id=self.id_of("e"), order=order)
        if self._sink.order_by and self._sink.mode == "upsert":
            order = joined(compose("e.{c} DESC NULLS LAST", c=order_column(name)) for name in self._sink.order_by)
            return compose("rank() OVER (PARTITION BY {id} ORDER BY {order})", id=self.id_of("e"), order=order)
        way = "DESC" if self._sink.mode == "upsert" else "ASC"
        return compose(
            f"row_number() OVER (PARTITION BY {{id}}, _topic, _partition ORDER BY _offset {way}, _row {way})",
            id=self.id_of("e"),
        )

    def _found(self) -> sql.Composable:
        places = self.identity.columns if not self.by_key else {}
        columns = {
            name.lstrip("_"): sql.Identifier("t", places[name]) if name in places else sql.SQL("NULL")
            for name in STAGED_LINEAGE
        }
        place: sql.Composable = _NOWHERE
        if self._within is not None:
            within = self._within
            place = _place("t") if "_offset" in self.identity.columns else _NOWHERE
        elif self.by_key:
            within = compose("{id} IN (SELECT {expected} FROM {table} e)", id=self.id_of("t"), expected=self.id_of("e"),
                             table=self.rows)  # fmt: skip
        else:
            within = compose(
                "EXISTS (SELECT FROM {ranges} r WHERE {topic} AND r.partition = CAST({partition} AS bigint) AND"
                " CAST({offset} AS bigint) >= r.first AND CAST({offset} AS bigint) < r.until)",
                ranges=self.ranges, partition=columns["partition"], offset=columns["offset"],
                topic=compose("r.topic = {topic}", topic=columns["topic"]) if "_topic" in places else sql.SQL("true"),
            )  # fmt: skip
            place = _PLACE.format(**columns)
        return compose(
            "SELECT {id} AS identity, {values} AS content, {place} AS spot FROM {table} t WHERE {within}",
            id=self.id_of("t"), values=_texts(self._value(name, "t") for name in self._own), place=place,
            table=self.table, within=within,
        )  # fmt: skip


def _place(row: str) -> sql.Composable:
    return _PLACE.format(**{name.lstrip("_"): sql.Identifier(row, name) for name in STAGED_LINEAGE})


def _texts(values: Iterable[sql.Composable]) -> sql.Composable:
    return compose('(ARRAY[{values}]::text[] COLLATE "C")', values=joined(values))
