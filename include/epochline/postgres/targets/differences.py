"""Compare a replay's staging with the rows of the replayed epoch: counts, and the first rows that differ."""

from collections.abc import Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE, is_reserved
from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.ports import RowDifference, TableDifference
from epochline.postgres.queries.composed import compose, joined, query, same
from epochline.protocol.staging import StagedTable


def difference(
    connection: Connection, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int
) -> TableDifference:
    """Compare row by row. A row is identified by the position of its record and its number within the record.

    Values are compared as text, because some types of PostgreSQL have no equality operator.
    """
    columns = [name for name in staged.columns if not is_reserved(name)]
    compared = compose(
        "SELECT CASE WHEN t._offset IS NULL THEN 'inserted' WHEN s._offset IS NULL THEN 'deleted'"
        " WHEN {before} IS DISTINCT FROM {after} THEN 'changed' ELSE 'same' END AS kind,"
        " {place}, {before} AS before, {after} AS after"
        " FROM (SELECT * FROM {target} WHERE _epoch = {epoch}) t FULL JOIN {staging} s ON {same_place}",
        before=_texts(columns, "t"), after=_texts(columns, "s"), epoch=epoch_id,
        place=joined(compose("coalesce(t.{c}, s.{c}) AS {c}", c=name) for name in STAGED_LINEAGE),
        target=sql.Identifier(*split_table(sink.table)), staging=sql.Identifier("epochline_staging", staged.table),
        same_place=same(STAGED_LINEAGE, "t", "s"),
    )  # fmt: skip
    counts = dict(query(connection, "SELECT kind, count(*) FROM ({compared}) c GROUP BY kind", compared=compared))
    rows = query(
        connection,
        "SELECT * FROM ({compared}) c WHERE kind <> 'same' ORDER BY 2, 3, 4, 5 LIMIT {samples}",
        compared=compared, samples=samples,
    )  # fmt: skip
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
        changed = [name for name in columns if was[name] != now[name]]
        was, now = {name: was[name] for name in changed}, {name: now[name] for name in changed}
    return RowDifference(
        kind=kind, place=(topic, partition, offset, number),
        before={} if kind == "inserted" else was, after={} if kind == "deleted" else now,
    )  # fmt: skip


def _texts(columns: Sequence[str], side: str) -> sql.Composed:
    texts = joined(compose("{c}::text", c=sql.Identifier(side, name)) for name in columns)
    return compose("ARRAY[{texts}]", texts=texts)
