"""What is needed to apply one sink's staging to its target: both tables, and the order of rows."""

from dataclasses import dataclass
from typing import Any

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import DELETED, STAGED_LINEAGE, UNAVAILABLE
from epochline.declare.names import deleted_keys_table, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.queries.composed import change, compose, joined, names, query, same
from epochline.postgres.targets.catalog import Target
from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The staging of one sink, and the target to which it is applied, in a transaction of the epoch."""

    connection: Connection
    epoch: Epoch
    pipeline: Pipeline
    sink: PostgresTable
    staged: StagedTable
    target: Target
    last_earlier_epoch: int = 0
    """Highest epoch id of earlier generations, or 0. The rows of those epochs have offsets of another log."""
    rows: sql.Identifier | None = None
    """A table or view with some of the staged rows; None for the whole staging table."""

    @property
    def staging(self) -> sql.Identifier:
        """The table or view with the staged rows, as a quoted identifier."""
        return self.rows or sql.Identifier("epochline_staging", self.staged.table)

    @property
    def deleted_keys(self) -> sql.Identifier:
        """The table of deleted keys, as a quoted identifier."""
        return sql.Identifier("epochline", deleted_keys_table(self.pipeline.name, self.sink.table))

    @property
    def order(self) -> list[str]:
        """Columns of staging that order the rows of a key."""
        return order_of(self.sink)

    @property
    def kept_order(self) -> list[str]:
        """The columns of the order that the target has: all, the declared ones, or none (a later epoch replaces).

        After a topic was adopted, positions can be compared only if the target has ``_epoch``.
        """
        return kept_order(self.sink, self.target, self.last_earlier_epoch)

    @property
    def carried(self) -> list[str]:
        """Columns that are copied from staging to the target under the same name."""
        copied = [name for name in self.staged.columns if name not in (DELETED, UNAVAILABLE)]
        return [name for name in copied if not name.startswith("_") or name in self.target.columns]

    @property
    def has_epoch(self) -> bool:
        """Whether the target's rows tell their epoch."""
        return "_epoch" in self.sink.carried_lineage

    @property
    def has_record(self) -> bool:
        """Whether each staged row belongs to one record. Rows of a transform and sums may come from several."""
        return not self.pipeline.is_transformed and STAGED_LINEAGE.keys() <= self.staged.columns.keys()

    @property
    def winners(self) -> sql.Composed:
        """Per key the row with the highest order, as a query."""
        order = [*(compose("{c}", c=c) for c in self.sink.key), *(compose("{c} DESC", c=c) for c in self.order)]
        return compose(
            "SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {order}",
            key=names(self.sink.key), staging=self.staging, order=joined(order),
        )  # fmt: skip

    @property
    def no_tombstone(self) -> sql.Composable:
        """The condition that a staged row ``s`` becomes a row of the target."""
        return self.compose("NOT s.{deleted}") if self.sink.mode == "upsert" else sql.SQL("true")

    def of_generation(self, row: str) -> sql.Composed:
        """The condition that the epoch's own generation wrote a row of the target."""
        return compose(
            "coalesce({epoch}, 0) > {last}", epoch=sql.Identifier(row, "_epoch"), last=self.last_earlier_epoch
        )

    def given(self, prefix: str) -> dict[str, sql.Composable]:
        """By column of the target, what the epoch writes there from a staged row: ``_epoch`` and time included."""
        given: dict[str, sql.Composable] = {name: sql.Identifier(prefix, name) for name in self.carried}
        if self.has_epoch:
            given["_epoch"] = sql.Literal(self.epoch.epoch_id)
        if self.sink.insert_time is not None:
            given[self.sink.insert_time] = sql.Literal(self.epoch.planned_at)
        return given

    def compose(self, text: str, /, **parts: object) -> sql.Composed:
        """A statement about both tables, or a piece of one.

        Its parts are ``staging``, ``target``, ``side`` (the table of deleted keys), ``key`` (its columns), ``same``
        (rows ``t`` and ``w`` have one key), ``winners``, ``deleted`` (the column), ``epoch`` (the id); and those given.
        """
        ours = {
            "staging": self.staging, "target": self.target.identifier, "side": self.deleted_keys,
            "key": names(self.sink.key), "same": same(self.sink.key, "t", "w"), "winners": self.winners,
            "deleted": DELETED, "epoch": self.epoch.epoch_id,
        }  # fmt: skip
        return compose(text, **{**ours, **parts})

    def query(self, text: str, /, **parts: object) -> list[tuple[Any, ...]]:
        """The rows of a statement that `compose` makes."""
        return query(self.connection, self.compose(text, **parts))

    def number(self, text: str, /, **parts: object) -> int:
        """The first value of the first row, as a number."""
        return int(self.query(text, **parts)[0][0])

    def change(self, text: str, /, **parts: object) -> int:
        """The number of rows that a statement wrote."""
        return change(self.connection, self.compose(text, **parts))


def order_of(sink: PostgresTable) -> list[str]:
    """Columns that order the rows of one key (the highest row wins): the declared ones, then the record's position."""
    position = [] if sink.aggregated else [*STAGED_LINEAGE]
    return [*(order_column(name) for name in sink.order_by), *position]


def remembers_deleted(sink: PostgresTable) -> bool:
    """Whether a table keeps the deleted keys, so that an older row that arrives later does not bring one back."""
    return sink.mode == "upsert" and bool(order_of(sink))


def kept_order(sink: PostgresTable, target: Target, last_earlier_epoch: int) -> list[str]:
    """`Application.kept_order` for a sink without staging."""
    whole, declared = order_of(sink), [order_column(name) for name in sink.order_by]
    positions_compare = not last_earlier_epoch or "_epoch" in sink.carried_lineage
    for kept in (whole, declared) if positions_compare else (declared,):
        if all(name in target.columns for name in kept):
            return kept
    return []
