"""What is needed to apply one sink's staging to its target: both tables, and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql

from epochline.declare.columns import DELETED, UNAVAILABLE
from epochline.declare.names import deleted_keys_table, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.postgres.targets.catalog import Target, order_of
from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The staging of one sink, and the target to which it is applied."""

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
        names = [name for name in self.staged.columns if name not in (DELETED, UNAVAILABLE)]
        return [name for name in names if not name.startswith("_") or name in self.target.columns]


def kept_order(sink: PostgresTable, target: Target, last_earlier_epoch: int) -> list[str]:
    """`Application.kept_order` for a sink without staging."""
    whole, declared = order_of(sink), [order_column(name) for name in sink.order_by]
    positions_compare = not last_earlier_epoch or "_epoch" in sink.carried_lineage
    for kept in (whole, declared) if positions_compare else (declared,):
        if all(name in target.columns for name in kept):
            return kept
    return []


def names(columns: Sequence[str], prefix: str | None = None) -> sql.Composed:
    """A quoted, comma-separated list of columns, each with the prefix if one is given."""
    return sql.SQL(", ").join(sql.Identifier(prefix, c) if prefix else sql.Identifier(c) for c in columns)


def same(columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """``left.a = right.a AND …``."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, c), sql.Identifier(right, c)) for c in columns
    )


def with_epoch(what: Application, epoch: Epoch, prefix: str) -> tuple[sql.Composed, sql.Composed]:
    """The target's column list and the matching select list, with the target's ``_epoch`` and ``insert_time``."""
    given = given_values(what, epoch, prefix)
    return names(list(given)), sql.SQL(", ").join(given.values())


def given_values(what: Application, epoch: Epoch, prefix: str) -> dict[str, sql.Composable]:
    """By column of the target, what an epoch writes there."""
    given: dict[str, sql.Composable] = {name: sql.Identifier(prefix, name) for name in what.carried}
    if "_epoch" in what.sink.carried_lineage:
        given["_epoch"] = sql.Literal(epoch.epoch_id)
    if what.sink.insert_time is not None:
        given[what.sink.insert_time] = sql.Literal(epoch.planned_at)
    return given


def of_generation(what: Application, row: str) -> sql.Composed:
    """The condition that the epoch's own generation wrote a row of the target."""
    return sql.SQL("coalesce({}, 0) > {}").format(sql.Identifier(row, "_epoch"), sql.Literal(what.last_earlier_epoch))
