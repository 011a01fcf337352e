"""Compares the rows that records should have given with those of a table by counting, inside PostgreSQL.

Rows belong together by their identity: the columns of a key, or those that hold the place of a record. Under one
identity the rows of both sides are counted by their values, NULL as a value like any other. So equal rows that stand
twice are found too, and a key of NULLs is compared. Numbers are equal whatever their scale, and JSON by its content.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from epochline.audit.counted_statement import Comparison
from epochline.audit.findings import Difference
from epochline.audit.session import AuditSession
from epochline.declare.table import PostgresTable
from epochline.errors import ConfigurationError
from epochline.postgres.queries.statements import change, compose, defined_columns, joined, query
from epochline.postgres.targets.columns import TargetColumn
from epochline.postgres.targets.conversion import count_money_as_the_database

_DIFFERENCE = (
    "id text[], place text[], missing bigint, doubled bigint, extra bigint, changed bigint, columns text[],"
    " elsewhere boolean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDifference:
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
    epoch: int | None = None
    """The epoch that its row names, where rows are told apart by it."""

    def __str__(self) -> str:
        place = "no place" if self.partition is None else f"{self.topic or 'partition'}-{self.partition}"
        offset = "" if self.offset is None else f" offset {self.offset}"
        row = f" row {self.row}" if self.row else ""
        several = f" ({self.number} rows)" if self.number > 1 else ""
        said = f": {', '.join(self.columns)}" if self.columns else ""
        return f"{self.table}: {self.kind}: {place}{offset}{row}{several}{said}"


class CountedRows:
    """The expected rows of one table, in temporary tables of one session. Every call is one transaction.

    Whatever reads the table is a read-only transaction.

    Args:
        connection: of a login with SELECT on the table.
        sink: the declaration of the table.
        target: the table's columns.
        columns: the columns of the expected rows with their types, as writers fill them.
        how: what is compared, and how.
    """

    def __init__(
        self, connection: AuditSession, sink: PostgresTable, target: Mapping[str, TargetColumn],
        columns: Mapping[str, str], how: Comparison,
    ) -> None:  # fmt: skip
        self._connection, self._sink, self._target = connection, sink, target
        self._columns, self._how = columns, how
        self.by_key = how.by_key

    @property
    def table(self) -> str:
        """The table's name in the declaration."""
        return self._sink.table

    def prepare(self, ranges: Sequence[tuple[str, int, int, int]]) -> None:
        """Create the temporary tables; ``ranges`` have topic, partition, first offset, and the one after the last."""
        with self._connection.snapshot():
            for table in (self._how.rows, self._how.elsewhere, self._how.ranges, self._how.differences):
                change(self._connection, "DROP TABLE IF EXISTS {table}", table=table)
            names_of, rows = self._how.names, defined_columns(self._columns)
            for name, columns in (
                (names_of["row"], rows),
                (names_of["elsewhere"], rows),
                (names_of["range"], sql.SQL("topic text, partition bigint, first bigint, until bigint")),
                (names_of["difference"], sql.SQL(_DIFFERENCE)),
            ):
                change(self._connection, "CREATE TEMP TABLE {name} ({columns})", name=name, columns=columns)
            for values in ranges:
                listed = joined(map(sql.Literal, values))
                change(self._connection, "INSERT INTO {table} VALUES ({values})", table=self._how.ranges, values=listed)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows that the table should have."""
        with self._connection.snapshot():
            self._connection.copy_rows(self._how.rows, self._columns, rows)

    def compare(self) -> None:
        """Compare, and keep the differences in the session.

        Raises:
            ConfigurationError: a column that should hold a place holds no number, or the login may not read the table.
        """
        with self._connection.snapshot():
            change(self._connection, "ANALYZE {expected}", expected=self._how.rows)
        try:
            with self._connection.snapshot(read_only=True):
                count_money_as_the_database(self._connection, self._target.values())
                change(self._connection, self._how.statement)
        except psycopg2.errors.InsufficientPrivilege:
            raise ConfigurationError(
                f"the login may not read {self._sink.table}: it needs SELECT on the table and USAGE on its schema."
            ) from None
        except psycopg2.DataError as error:
            raise ConfigurationError(
                f"{self._sink.table}: values cannot be compared by {self._how.identity} ({error.diag.message_primary})."
            ) from None

    def without_place(self) -> int:
        """How many rows of the table have a NULL where a place should be."""
        if self.by_key:
            return 0
        empty = joined((compose("{c} IS NULL", c=name) for name in self._how.identity.columns.values()), " OR ")
        with self._connection.snapshot(read_only=True):
            counted = query(self._connection, compose("SELECT count(*) FROM {t} WHERE {e}", t=self._how.table, e=empty))
        return int(counted[0][0])

    @property
    def asks_elsewhere(self) -> bool:
        """Whether records outside the ranges may explain a difference: by a place, none can."""
        if not self.by_key:
            return False
        with self._connection.snapshot():
            found = query(
                self._connection, "SELECT 1 FROM {d} WHERE {upsert} OR doubled + changed + extra > 0 LIMIT 1",
                d=self._how.differences, upsert=sql.Literal(self._sink.mode == "upsert"),
            )  # fmt: skip
        return bool(found)

    def elsewhere(self, rows: pa.RecordBatch) -> None:
        """Note that records outside the ranges have the keys of these rows."""
        with self._connection.snapshot():
            self._connection.copy_rows(self._how.elsewhere, self._columns, rows)
            change(
                self._connection,
                "UPDATE {found} SET elsewhere = true WHERE NOT elsewhere AND id IN (SELECT {id} FROM {table} e)",
                found=self._how.differences, id=self._how.id_of("e"), table=self._how.elsewhere,
            )  # fmt: skip
            change(self._connection, "TRUNCATE {table}", table=self._how.elsewhere)

    def excuse(self) -> int:
        """Take back what records outside the ranges may explain; return of how many keys something was taken back."""
        upsert, skip = self._sink.mode == "upsert", self._sink.repeats == "skip"
        if upsert:  # one row per key at any time, of any record
            statement = (
                "UPDATE {d} SET missing = 0, extra = 0, changed = 0"
                " WHERE elsewhere AND missing + extra + changed > 0 RETURNING 1"
            )
        elif skip:  # the first record of the key may be outside
            statement = "UPDATE {d} SET changed = 0 WHERE elsewhere AND changed > 0 RETURNING 1"
        else:  # a row too many may be another record's, and so may one with other values
            statement = (
                "UPDATE {d} SET missing = missing + changed, changed = 0, doubled = 0"
                " WHERE elsewhere AND doubled + changed > 0 RETURNING 1"
            )
        with self._connection.snapshot():
            taken = query(self._connection, statement, d=self._how.differences)
        return len(taken)

    def totals(self) -> dict[str, int]:
        """The number of rows of each kind of difference."""
        kinds = ("missing", "doubled", "extra", "changed")
        sums = joined(compose("coalesce(sum({k}), 0)", k=kind) for kind in kinds)
        with self._connection.snapshot():
            (counts,) = query(self._connection, compose("SELECT {sums} FROM {d}", sums=sums, d=self._how.differences))
        return {kind: int(count) for kind, count in zip(kinds, counts, strict=True)}

    def sample(self, most: int) -> list[CountedDifference]:
        """At most ``most`` differences, in the order of the records."""
        statement = compose(
            "SELECT place, k.kind, k.number, columns, id[1] FROM {d}, LATERAL (VALUES ('missing', missing), ('doubled',"
            " doubled), ('extra', extra), ('changed', changed)) AS k (kind, number) WHERE k.number > 0"
            " ORDER BY place, 2 LIMIT {most}",
            d=self._how.differences, most=most,
        )  # fmt: skip
        with self._connection.snapshot():
            rows = query(self._connection, statement)
        by_epoch = next(iter(self._how.identity.columns), None) == "_epoch"
        return [
            CountedDifference(
                table=self._sink.table, kind=kind, number=number, topic=place[0], partition=_whole(place[1]),
                offset=_whole(place[2]), row=_whole(place[3]), columns=columns if kind == "changed" else (),
                epoch=_whole(epoch) if by_epoch else None,
            )
            for place, kind, number, columns, epoch in ((at or [None] * 4, *rest) for at, *rest in rows)
        ]  # fmt: skip

    def told(self, most: int, epoch_of: Callable[[CountedDifference], int | None]) -> Iterator[Difference]:
        """The differences after `compare`, at most ``most`` of them by their places, the others as a number."""
        more = sum(self.totals().values())
        for found in self.sample(most):
            said = ", ".join(found.columns) or None
            if found.topic is None or found.number > 1:
                said = f"{found.number} rows{f': {said}' if said else ''}"
            yield Difference(
                epoch_id=epoch_of(found) if found.epoch is None else found.epoch, where=self.table, kind=found.kind,
                topic=found.topic, partition=found.partition, offset=found.offset, row=found.row, said=said,
            )  # fmt: skip
            more -= found.number
        if more:
            yield Difference(epoch_id=None, where=self.table, kind="count", said=f"{more} further rows differ")


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)
