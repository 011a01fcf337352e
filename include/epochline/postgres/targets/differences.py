"""Compare a replay's staging with the rows of the replayed epoch: counts, and the first rows that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE, is_reserved
from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.ports import RowDifference, TableDifference
from epochline.postgres.queries.composed import execute_sql
from epochline.protocol.staging import StagedTable


def difference(
    connection: Connection, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int
) -> TableDifference:
    """Compare row by row. A row is identified by the position of its record and its number within the record.

    Values are compared as text, because some types of PostgreSQL have no equality operator.
    """
    columns = [name for name in staged.columns if not is_reserved(name)]
    place = list(STAGED_LINEAGE)
    parts = {
        "target": sql.Identifier(*split_table(sink.table)),
        "staging": sql.Identifier("epochline_staging", staged.table),
        "epoch": sql.Literal(epoch_id),
        "same_place": sql.SQL(" AND ").join(
            sql.SQL("t.{name} = s.{name}").format(name=sql.Identifier(name)) for name in place
        ),
        "kind": sql.SQL(
            "CASE WHEN t._offset IS NULL THEN 'inserted' WHEN s._offset IS NULL THEN 'deleted'"
            " WHEN {} IS DISTINCT FROM {} THEN 'changed' ELSE 'same' END"
        ).format(_texts(columns, "t"), _texts(columns, "s")),
        "place": sql.SQL(", ").join(
            sql.SQL("coalesce(t.{name}, s.{name}) AS {name}").format(name=sql.Identifier(name)) for name in place
        ),
        "before": _texts(columns, "t"),
        "after": _texts(columns, "s"),
    }
    compared = sql.SQL(
        "SELECT {kind} AS kind, {place}, {before} AS before, {after} AS after FROM (SELECT * FROM {target}"
        " WHERE _epoch = {epoch}) t FULL JOIN {staging} s ON {same_place}"
    ).format(**parts)
    counted = sql.SQL("SELECT kind, count(*) FROM ({}) c GROUP BY kind").format(compared)
    counts: dict[str, int] = dict(execute_sql(connection, counted)[1])
    first = sql.SQL("SELECT * FROM ({}) c WHERE kind <> 'same' ORDER BY 2, 3, 4, 5 LIMIT {}")
    rows = execute_sql(connection, first.format(compared, sql.Literal(samples)))[1]
    return TableDifference(
        table=sink.table,
        samples=[_row(columns, *row) for row in rows],
        **{kind: int(counts.get(kind, 0)) for kind in ("same", "inserted", "deleted", "changed")},
    )


def _row(
    columns: Sequence[str], kind: str, topic: str, partition: int, offset: int, number: int,
    before: Sequence[str | None], after: Sequence[str | None],
) -> RowDifference:  # fmt: skip
    was, now = dict(zip(columns, before, strict=True)), dict(zip(columns, after, strict=True))
    if kind == "changed":
        kept = [name for name in columns if was[name] != now[name]]
        was, now = _only(was, kept), _only(now, kept)
    return RowDifference(
        kind=kind, place=(topic, partition, offset, number),
        before={} if kind == "inserted" else was, after={} if kind == "deleted" else now,
    )  # fmt: skip


def _only(values: Mapping[str, str | None], names: Sequence[str]) -> dict[str, str | None]:
    return {name: values[name] for name in names}


def _texts(columns: Sequence[str], side: str) -> sql.Composed:
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(side, name)) for name in columns)
    return sql.SQL("ARRAY[{}]").format(texts)
