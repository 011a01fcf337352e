"""Compares the rows that a target should have with those that it has, bit by bit, inside PostgreSQL.

The expected rows are copied as in staging into a temporary table with the target's column types, so that PostgreSQL
converts both sides alike. Only differences leave the server.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, Self

import pyarrow as pa
from psycopg2 import sql

from epochline.audit.findings import Difference
from epochline.audit.session import AuditSession
from epochline.declare.columns import LINEAGE, QUARANTINE_COLUMNS
from epochline.declare.names import split_table
from epochline.postgres.queries.statements import change, compose, defined_columns, joined, names, query
from epochline.postgres.queries.statements import run as execute
from epochline.postgres.targets.columns import TargetColumn, columns_of
from epochline.postgres.targets.conversion import count_money_as_the_database

_POSITION = ("_epoch", "_topic", "_partition", "_offset", "_row")
_COPY = "_copy"
_GAP = sql.Identifier("pg_temp", "audited_gap")
_RECORD = "audited_record"
_KEPT = {**QUARANTINE_COLUMNS, "epoch_id": "bigint"}


class RowDifference(NamedTuple):
    """A row that one side lacks, or that differs between the sides in ``columns``."""

    epoch_id: int | None
    topic: str | None
    partition: int | None
    offset: int | None
    row: int | None
    kind: str
    columns: Sequence[str]

    def told(self, where: str) -> Difference:
        """The difference as a finding in a target, or in the quarantine."""
        fields = self._asdict()
        return Difference(where=where, said=", ".join(fields.pop("columns")) or None, **fields)


class ExpectedRows:
    """Temporary tables of one session: the rows that targets should have for a few epochs.

    ``sinks`` has each target's columns with their types, as `staged_columns` orders them; ``skipped`` the unique key of
    each that skips repeats: no row is missing whose key the target has. Every call is one transaction.
    """

    def __init__(
        self, connection: AuditSession, sinks: Mapping[str, Mapping[str, str]], skipped: Mapping[str, Sequence[str]]
    ) -> None:
        self._skipped = skipped
        self._connection = connection
        self._columns = {sink: {**columns, "_epoch": LINEAGE["_epoch"]} for sink, columns in sinks.items()}
        self._tables = {sink: f"audited_{number}" for number, sink in enumerate(sinks)}
        self._judged: dict[str, dict[str, TargetColumn]] = {}
        """By target, the columns that a writer fills in another type than the target's."""

    @property
    def sinks(self) -> frozenset[str]:
        """The targets whose rows are compared."""
        return frozenset(self._tables)

    def __enter__(self) -> Self:
        with self._connection.snapshot():
            gaps = sql.SQL("topic text, partition integer, first bigint, until bigint")
            for name, columns in (("audited_gap", gaps), (_RECORD, defined_columns(_KEPT))):
                change(self._connection, "CREATE TEMP TABLE {name} ({columns})", name=name, columns=columns)
            for sink, kinds in self._columns.items():
                shapes = columns_of(self._connection, sink)
                judged = self._judged[sink] = {name: shapes[name] for name in kinds if shapes[name].is_judged}
                selected = joined(
                    compose("NULL::{kind} AS {name}", kind=sql.SQL(shapes[name].staged), name=name)
                    if name in judged
                    else sql.Identifier(name)
                    for name in kinds
                )
                change(
                    self._connection, "CREATE TEMP TABLE {table} AS SELECT {selected} FROM {target} WITH NO DATA",
                    table=self._tables[sink], selected=selected, target=_target(sink),
                )  # fmt: skip
        return self

    def __exit__(self, *raised: object) -> None:
        if raised[0] is not None:
            return  # the session ends, and its temporary tables with it
        with self._connection.snapshot():
            tables = names(["audited_gap", _RECORD, *self._tables.values()], "pg_temp")
            change(self._connection, "DROP TABLE IF EXISTS {tables}", tables=tables)

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Add rows that the target should have of an epoch; staged columns that are not compared are left out."""
        rows = rows.select([name for name in self._columns[sink] if name != "_epoch"])
        self._copy(self._tables[sink], self._columns[sink], rows.append_column("_epoch", _constant(epoch_id, rows)))

    def set_aside(self, epoch_id: int, records: pa.RecordBatch) -> None:
        """Add records of an epoch that the quarantine should have (`epochline.declare.columns.QUARANTINE_COLUMNS`)."""
        self._copy(_RECORD, _KEPT, records.append_column("epoch_id", _constant(epoch_id, records)))

    def leave_out(self, topic: str, partition: int, first: int, until: int) -> None:
        """Exclude offsets ``[first, until)``, which cannot be judged, from every comparison."""
        values = joined(map(sql.Literal, (topic, partition, first, until)))
        with self._connection.snapshot():
            change(self._connection, "INSERT INTO {gap} VALUES ({values})", gap=_GAP, values=values)

    def _copy(self, table: str, columns: Mapping[str, str], rows: pa.RecordBatch) -> None:
        with self._connection.snapshot() as session:
            session.copy_rows(sql.Identifier("pg_temp", table), columns, rows)

    def differences(self, sink: str, epochs: Sequence[int]) -> Iterator[RowDifference]:
        """Differences between the target's rows of these epochs and the expected rows, in the order of the records."""
        own = [name for name in self._columns[sink] if name not in _POSITION]
        statement = compose(
            "WITH t AS (SELECT {columns}, row_number() OVER (PARTITION BY {position} ORDER BY ctid) AS {copy}"
            " FROM {target} t WHERE _epoch = ANY ({epochs}) AND NOT EXISTS (SELECT FROM {gap} g WHERE"
            " g.topic = t._topic AND g.partition = t._partition AND t._offset >= g.first AND t._offset < g.until)),"
            " e AS (SELECT {columns}, 1::bigint AS {copy} FROM {expected} WHERE _epoch = ANY ({epochs}))"
            " SELECT {both}, CASE WHEN t.{copy} > 1 THEN 'doubled' WHEN e.{copy} IS NULL THEN 'extra'"
            " WHEN t.{copy} IS NULL THEN 'missing' ELSE 'changed' END,"
            " CASE WHEN e.{copy} = t.{copy} THEN array_remove(ARRAY[{each}], NULL) ELSE '{{}}' END"
            " FROM e FULL JOIN t ON ({e_position}, e.{copy}) = ({t_position}, t.{copy})"
            " WHERE (e.{copy} IS NULL OR t.{copy} IS NULL OR {e_row} *<> {t_row})"
            " AND NOT (t.{copy} IS NULL AND {skipped}) ORDER BY 1, 2, 3, 4, 5",
            columns=self._comparable(sink, [*own, *_POSITION]), position=names(_POSITION), copy=_COPY,
            target=_target(sink), epochs=list(epochs), gap=_GAP,
            expected=sql.Identifier("pg_temp", self._tables[sink]),
            both=joined(
                compose("coalesce({e}, {t})", e=sql.Identifier("e", name), t=sql.Identifier("t", name))
                for name in _POSITION
            ),
            each=joined(
                compose(
                    "CASE WHEN {e} *<> {t} THEN {name} END",
                    e=_record([name], "e"), t=_record([name], "t"), name=sql.Literal(name),
                )
                for name in own
            ),
            e_position=names(_POSITION, "e"), t_position=names(_POSITION, "t"), skipped=self._was_skipped(sink),
            e_row=_record(own, "e"), t_row=_record(own, "t"),
        )  # fmt: skip
        with self._connection.snapshot(), closing(self._connection.cursor("audited")) as cursor:
            count_money_as_the_database(self._connection, self._judged[sink].values())
            cursor.execute(statement)
            yield from map(RowDifference._make, cursor)

    def _comparable(self, sink: str, columns: Sequence[str]) -> sql.Composed:
        """The columns of either side in one type, which is the target's without domains."""
        bases = {name: sql.SQL(shape.base) for name, shape in self._judged[sink].items()}
        return joined(
            compose("{name}::{base} AS {name}", name=name, base=bases[name]) if name in bases else sql.Identifier(name)
            for name in columns
        )

    def _was_skipped(self, sink: str) -> sql.Composable:
        """The condition that an expected row ``e`` is a repeat of a key that the target has."""
        if sink not in self._skipped:
            return sql.SQL("false")
        key = self._skipped[sink]
        repeat = "EXISTS (SELECT FROM {target} k WHERE ({k}) = ({e}))"
        return compose(repeat, target=_target(sink), k=names(key, "k"), e=names(key, "e"))

    def quarantine_differences(self, pipeline: str, epochs: Sequence[int]) -> list[RowDifference]:
        """Differences between the quarantine and the records that these epochs should have set aside."""
        with self._connection.snapshot():
            rows = execute(self._connection, "quarantine_differences", pipeline=pipeline, epochs=list(epochs))
            return [RowDifference(row=None, columns=(), **row) for row in rows.mappings()]


def count_by_epoch(connection: AuditSession, sink: str, epochs: Sequence[int]) -> dict[int, int]:
    """Count the rows of a target by epoch."""
    counting = "SELECT _epoch, count(*) FROM {target} WHERE _epoch = ANY ({epochs}) GROUP BY _epoch"
    with connection.snapshot():
        return dict(query(connection, counting, target=_target(sink), epochs=list(epochs)))


def strays(connection: AuditSession, sink: str, pipeline: str) -> Iterator[RowDifference]:
    """Rows of a target that name no committed epoch of the pipeline."""
    statement = compose(
        "SELECT {position}, 'extra', '{{}}'::text[] FROM {target} t WHERE NOT EXISTS (SELECT FROM epochline.epoch e"
        " WHERE e.pipeline = {pipeline} AND e.epoch_id = t._epoch AND e.state = 'COMMITTED'"
        " AND e.undone_by IS NULL) ORDER BY 1, 2, 3, 4, 5",
        position=names(_POSITION, "t"), target=_target(sink), pipeline=sql.Literal(pipeline),
    )  # fmt: skip
    with connection.snapshot(), closing(connection.cursor("strays")) as cursor:
        cursor.execute(statement)
        yield from map(RowDifference._make, cursor)


def _constant(epoch_id: int, rows: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(epoch_id, pa.int64()), rows.num_rows)


def _target(sink: str) -> sql.Identifier:
    return sql.Identifier(*split_table(sink))


def _record(columns: Sequence[str], prefix: str) -> sql.Composed:
    # As a record: *<> compares the binary images of records, while two rows would be compared column by column.
    return compose("ROW({columns})::record", columns=names(columns, prefix))
