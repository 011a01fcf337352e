"""From staging into the target: append, upsert, add, replace, by set-based statements that the driver composes.

Keys are touched in sorted order, so that two writers of neighbouring tables never lock rows crosswise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.epoch import Epoch
from epochline.layout import DELETED, StagedTable
from epochline.ledger.cursor import execute_sql
from epochline.names import deleted_keys_table, order_column
from epochline.pipeline import Pipeline
from epochline.sinks.catalog import Target, order_of
from epochline.state import StateTable
from epochline.table import PostgresTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One sink's staging about to be applied to its target."""

    pipeline: Pipeline
    sink: PostgresTable
    staged: StagedTable
    target: Target
    superseded: int = 0
    """Highest epoch id of earlier generations: offsets of rows that these wrote are of another log; 0 if none."""

    @property
    def staging(self) -> sql.Identifier:
        """The staging table, quoted by the driver."""
        return sql.Identifier("epochline_staging", self.staged.table)

    @property
    def deleted_keys(self) -> sql.Identifier:
        """The table of deleted keys, quoted by the driver."""
        return sql.Identifier("epochline", deleted_keys_table(self.pipeline.name, self.sink.table))

    @property
    def order(self) -> list[str]:
        """Columns of staging that order the rows of a key."""
        return order_of(self.sink)

    @property
    def kept_order(self) -> list[str]:
        """The order as far as the target keeps it: all, what was declared, or nothing (a later epoch replaces).

        After an adopted topic a position means something only where the row says which epoch wrote it.
        """
        return kept_order(self.sink, self.target, self.superseded)

    @property
    def carried(self) -> list[str]:
        """Columns that go from staging to target under the same name."""
        names = [name for name in self.staged.columns if name != DELETED]
        return [name for name in names if not name.startswith("_") or name in self.target.columns]


def kept_order(sink: PostgresTable, target: Target, superseded: int) -> list[str]:
    """`Application.kept_order`, also for a sink that nothing is staged for."""
    whole, declared = order_of(sink), [order_column(name) for name in sink.order_by]
    positions_compare = not superseded or "_epoch" in sink.carried_lineage
    for kept in (whole, declared) if positions_compare else (declared,):
        if all(name in target.columns for name in kept):
            return kept
    return []


def names(columns: Sequence[str], prefix: str | None = None) -> sql.Composed:
    """A quoted, comma-separated list of columns, each behind ``prefix.`` where given."""
    return sql.SQL(", ").join(sql.Identifier(prefix, c) if prefix else sql.Identifier(c) for c in columns)


def same(columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """``left.a = right.a AND …``."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, c), sql.Identifier(right, c)) for c in columns
    )


def apply(connection: Connection, what: Application, epoch: Epoch) -> int:
    """Apply staging to the target; the number of target rows written or deleted."""
    if what.sink.mode == "add":
        return _add(connection, what)
    if what.sink.mode == "upsert":
        return _upsert(connection, what, epoch)
    if what.sink.mode == "replace":
        execute_sql(connection, sql.SQL("DELETE FROM {}").format(what.target.identifier))
    return _append(connection, what, epoch)


def _with_epoch(what: Application, epoch: Epoch, prefix: str) -> tuple[sql.Composed, sql.Composed]:
    """The target's column list and the matching select list, ``_epoch`` included where the target has it."""
    into, values = names(what.carried), names(what.carried, prefix)
    if "_epoch" in what.sink.carried_lineage:
        into += sql.SQL(", ") + sql.Identifier("_epoch")
        values += sql.SQL(", ") + sql.Literal(epoch.epoch_id)
    return into, values


def _append(connection: Connection, what: Application, epoch: Epoch) -> int:
    into, values = _with_epoch(what, epoch, "s")
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s").format(
        what.target.identifier, into, values, what.staging
    )
    return execute_sql(connection, statement)[0]


def _add(connection: Connection, what: Application) -> int:
    sums = sql.SQL(", ").join(
        sql.SQL("CAST(coalesce(sum({m}), 0) AS {kind})").format(
            m=sql.Identifier(name), kind=sql.SQL(what.staged.columns[name])
        )
        for name in what.sink.measures
    )
    added = sql.SQL(", ").join(
        sql.SQL("{m} = coalesce({old}, 0) + {new}").format(
            m=sql.Identifier(name), old=sql.Identifier("t", name), new=sql.Identifier("excluded", name)
        )
        for name in what.sink.measures
    )
    key = names(what.sink.key)
    statement = sql.SQL(
        "INSERT INTO {target} AS t ({key}, {measures}) SELECT {staged_key}, {sums} FROM {staging} s"
        " GROUP BY {staged_key} ORDER BY {staged_key} ON CONFLICT ({key}) DO UPDATE SET {added}"
    ).format(
        target=what.target.identifier,
        key=key,
        staged_key=names(what.sink.key, "s"),
        measures=names(what.sink.measures),
        sums=sums,
        staging=what.staging,
        added=added,
    )
    return execute_sql(connection, statement)[0]


def _winners(what: Application) -> sql.Composed:
    """Per key the row with the highest order."""
    descending = [sql.SQL("{} DESC").format(sql.Identifier(name)) for name in what.order]
    ordering = sql.SQL(", ").join([*(sql.Identifier(name) for name in what.sink.key), *descending])
    return sql.SQL("SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}").format(names(what.sink.key), what.staging, ordering)


def _newer(columns: Sequence[str], left: str, right: str) -> sql.Composable:
    if not columns:
        return sql.SQL("true")
    return sql.SQL("({}) > ({})").format(names(columns, left), names(columns, right))


def _replaces(what: Application, left: str, right: str) -> sql.Composable:
    """Whether a staged row replaces a target row; of equals the later epoch's, where the target keeps no position."""
    if what.kept_order and what.kept_order != what.order:
        return sql.SQL("NOT {}").format(_newer(what.kept_order, right, left))
    if what.superseded and what.kept_order and not what.sink.aggregated:
        # A generation's offsets begin anew: it comes before the position, and after what was declared.
        return sql.SQL("({}) > ({})").format(
            _with_generation(what, left, sql.SQL("true")), _with_generation(what, right, of_generation(what, right))
        )
    return _newer(what.kept_order, left, right)


def of_generation(what: Application, row: str) -> sql.Composed:
    """Whether the epoch's own generation wrote a row of the target."""
    return sql.SQL("coalesce({}, 0) > {}").format(sql.Identifier(row, "_epoch"), sql.Literal(what.superseded))


def _with_generation(what: Application, row: str, generation: sql.Composable) -> sql.Composed:
    columns: list[sql.Composable] = [sql.Identifier(row, name) for name in what.kept_order]
    columns.insert(len(what.sink.order_by), generation)
    return sql.SQL(", ").join(columns)


def _differs(what: Application) -> sql.Composable:
    """State is written where it changed, and ``_epoch`` says when that was (C8)."""
    values = [name for name in what.carried if name not in what.sink.key]
    if not values:
        return sql.SQL("false")
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(names(values, "t"), names(values, "excluded"))


def _upsert(connection: Connection, what: Application, epoch: Epoch) -> int:
    into, values = _with_epoch(what, epoch, "w")
    key = what.sink.key
    set_columns = [name for name in what.carried if name not in key]
    if "_epoch" in what.sink.carried_lineage:
        set_columns.append("_epoch")
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier("excluded", name)) for name in set_columns
    )
    action = (
        sql.SQL("DO UPDATE SET {} WHERE {}").format(
            assignments, _differs(what) if isinstance(what.sink, StateTable) else _replaces(what, "excluded", "t")
        )
        if set_columns
        else sql.SQL("DO NOTHING")
    )
    statement = sql.SQL(
        "WITH w AS ({winners}) INSERT INTO {target} AS t ({into}) SELECT {values} FROM w WHERE NOT w.{deleted}"
        " AND {not_deleted} ORDER BY {key} ON CONFLICT ({plain_key}) {action}"
    ).format(
        winners=_winners(what),
        target=what.target.identifier,
        into=into,
        values=values,
        deleted=sql.Identifier(DELETED),
        not_deleted=_not_deleted_since(what),
        key=names(key, "w"),
        plain_key=names(key),
        action=action,
    )
    written = execute_sql(connection, statement)[0]
    return written + _delete(connection, what)


def _not_deleted_since(what: Application) -> sql.Composable:
    if not what.order:
        return sql.SQL("true")
    return sql.SQL("NOT EXISTS (SELECT FROM {} d WHERE {} AND NOT {})").format(
        what.deleted_keys, same(what.sink.key, "d", "w"), _newer(what.order, "w", "d")
    )


def _delete(connection: Connection, what: Application) -> int:
    """Tombstones: delete, and keep key and order where there is one, so that an older record brings no row back."""
    key, parts = what.sink.key, {"winners": _winners(what), "side": what.deleted_keys}
    deleted = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {target} AS t USING w WHERE w.{deleted} AND {same} AND {newer}"
    ).format(
        target=what.target.identifier,
        deleted=sql.Identifier(DELETED),
        same=same(key, "t", "w"),
        newer=_replaces(what, "w", "t"),
        **parts,
    )
    rows = execute_sql(connection, deleted)[0]
    if not what.order:
        return rows
    kept = [*key, *what.order]
    remembered = sql.SQL(
        "WITH w AS ({winners}) INSERT INTO {side} AS d ({kept}) SELECT {values} FROM w WHERE w.{deleted} ORDER BY"
        " {sorted}"
        " ON CONFLICT ({key}) {action}"
    ).format(
        kept=names(kept),
        values=names(kept, "w"),
        deleted=sql.Identifier(DELETED),
        sorted=names(key, "w"),
        key=names(key),
        action=sql.SQL("DO UPDATE SET {} WHERE {}").format(
            sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(c), sql.Identifier("excluded", c)) for c in what.order
            ),
            _newer(what.order, "excluded", "d"),
        ),
        **parts,
    )
    forgotten = sql.SQL(
        "WITH w AS ({winners}) DELETE FROM {side} d USING w WHERE NOT w.{deleted} AND {same} AND {newer}"
    ).format(deleted=sql.Identifier(DELETED), same=same(key, "d", "w"), newer=_newer(what.order, "w", "d"), **parts)
    execute_sql(connection, remembered)
    execute_sql(connection, forgotten)
    return rows
