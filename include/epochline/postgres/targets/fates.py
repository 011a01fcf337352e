"""What becomes of each row staged for an upsert, predicted before anything is written (INV-9, ADR 0017).

``order`` are the staging columns that order the rows of a key: the declared ones, then the record's position.
``kept_order`` is the part of them that the target has. Both are empty for aggregated rows without ``order_by``.
"""

from collections.abc import Sequence

from psycopg2 import sql

from epochline.declare.state import StateTable
from epochline.postgres.queries.statements import compose, joined, names, same
from epochline.postgres.targets.application import Application

_FALSE, _TRUE = sql.SQL("false"), sql.SQL("true")


def with_fate(what: Application, columns: sql.Composable, fate: str) -> sql.Composed:
    """A query of these columns of each winner ``w``, and what becomes of it, under the name ``fate``.

    A fate of NULL is counted nowhere, so that the sum is too small and the commit stops.
    """
    deleted_later, late = behind(what)
    return what.compose(
        "SELECT {columns}, CASE WHEN {behind} THEN 'superseded'"
        " WHEN NOT ({there}) AND w.{deleted} THEN 'unchanged' WHEN NOT ({there}) THEN 'inserted'"
        " WHEN {stays} THEN 'superseded' WHEN ({replaces}) IS NOT TRUE THEN NULL"
        " WHEN w.{deleted} THEN 'deleted' WHEN {changes} THEN 'updated' ELSE 'unchanged' END AS {fate}"
        " FROM ({winners}) w LEFT JOIN {target} t ON {same}{deleted_later}",
        columns=columns, behind=late, there=_there(what), stays=stays(what), replaces=replaces(what, "w", "t"),
        changes=changes(what, "w"), deleted_later=deleted_later, fate=fate,
    )  # fmt: skip


def _there(what: Application) -> sql.Composed:
    return compose("{first} IS NOT NULL", first=sql.Identifier("t", what.sink.key[0]))


def behind(what: Application) -> tuple[sql.Composable, sql.Composable]:
    """The join of the remembered deletion ``d`` of a key, and the condition that the row ``w`` is no newer."""
    if not what.order:
        return sql.SQL(""), _FALSE
    late = _at_least(names(what.order, "d"), names(what.order, "w"))
    deletion = what.compose(" LEFT JOIN {side} d ON {same}", same=same(what.sink.key, "d", "w"))
    return deletion, what.compose("NOT w.{deleted} AND {late}", late=late)


def newer(columns: Sequence[str], left: str, right: str) -> sql.Composed:
    """The condition that one row's order is higher than another's. A row without a complete order is the oldest."""
    return _newer(names(columns, left), names(columns, right))


def _newer(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    return compose("(({l}) IS NOT NULL AND (NOT (({r}) IS NOT NULL) OR ({l}) > ({r})))", l=left, r=right)


def _at_least(left: sql.Composable, right: sql.Composable) -> sql.Composed:
    return compose("({left}) >= ({right})", left=left, right=right)


def not_deleted_since(what: Application) -> sql.Composable:
    """The condition that no stored tombstone is as new as the staged row ``w``."""
    if not what.order:
        return _TRUE
    return what.compose(
        "NOT EXISTS (SELECT FROM {side} d WHERE {same} AND NOT {newer})",
        same=same(what.sink.key, "d", "w"), newer=newer(what.order, "w", "d"),
    )  # fmt: skip


def _keeps_declared_order_only(what: Application) -> bool:
    """Whether the target keeps the declared order but no position. Of equal rows the later epoch's wins."""
    return bool(what.kept_order) and what.kept_order != what.order


def replaces(what: Application, left: str, right: str) -> sql.Composable:
    """The condition that a staged row replaces a target row."""
    if not what.kept_order:
        return _TRUE
    if _keeps_declared_order_only(what):
        return compose("NOT {newer}", newer=newer(what.kept_order, right, left))
    return _newer(_in_generation(what, left, _TRUE), _in_generation(what, right, what.of_generation(right)))


def stays(what: Application) -> sql.Composable:
    """The condition that a target row ``t`` is known to be newer than the staged row ``w`` of its key."""
    if not what.kept_order:
        return _FALSE
    if _keeps_declared_order_only(what):
        return compose("({t}) > ({w})", t=names(what.kept_order, "t"), w=names(what.kept_order, "w"))
    return _at_least(_in_generation(what, "t", what.of_generation("t")), _in_generation(what, "w", _TRUE))


def _in_generation(what: Application, row: str, generation: sql.Composable) -> sql.Composed:
    """The order of a row: the declared columns, whether this generation wrote it, its position.

    false < true, so a row of an earlier generation is older than every staged row: offsets may restart in a new one.
    """
    columns: list[sql.Composable] = [sql.Identifier(row, name) for name in what.kept_order]
    if what.last_earlier_epoch and not what.sink.aggregated:
        columns.insert(len(what.sink.order_by), generation)
    return joined(columns)


def set_columns(what: Application) -> list[str]:
    """The columns of the target that an update writes."""
    return [name for name in what.given("w") if name not in what.sink.key]


def changes(what: Application, staged: str) -> sql.Composable:
    """The condition that a row is written: state only if it changed, other rows always."""
    values = _values(what)
    if not set_columns(what) or (isinstance(what.sink, StateTable) and not values):
        return _FALSE
    if not isinstance(what.sink, StateTable):
        return _TRUE
    # As records, bit by bit: equal numbers and texts may differ in how they are written.
    t, s = names(values, "t"), names(values, staged)
    return compose("ROW({t})::record *<> ROW({staged})::record", t=t, staged=s)


def _values(what: Application) -> list[str]:
    return [name for name in what.carried if name not in what.sink.key]


def count_unsettled(what: Application) -> int:
    """The number of staged keys of which the target afterwards does not hold what their newest record says.

    A key is settled if its row is at least as new, if it has no row and its newest record is a tombstone, or if a newer
    tombstone is remembered. If the target keeps no position, the row must have this epoch's number, or else the
    record's order or values.
    """
    deleted_later, late = behind(what)
    return what.number(
        "WITH w AS ({winners}) SELECT count(*) FROM w LEFT JOIN {target} t ON {same}{deleted_later} WHERE (CASE"
        " WHEN {behind} THEN true WHEN NOT ({there}) THEN w.{deleted} WHEN {stays} THEN true WHEN w.{deleted} THEN"
        " false ELSE {written} END) IS NOT TRUE",
        deleted_later=deleted_later, behind=late, there=_there(what), stays=stays(what), written=_is_written(what),
    )  # fmt: skip


def _is_written(what: Application) -> sql.Composable:
    """The condition that a target row ``t`` is the staged row ``w``, as far as the target tells."""
    if isinstance(what.sink, StateTable):
        return compose("NOT {changes}", changes=changes(what, "w"))
    if what.has_epoch:
        return what.compose("t._epoch = {epoch}")
    if what.kept_order:
        return compose("({t}) = ({w})", t=names(what.kept_order, "t"), w=names(what.kept_order, "w"))
    # Only its values tell whether the row was written. As text, because some types have no equality operator.
    equal = '({t}::text COLLATE "C") IS NOT DISTINCT FROM ({w}::text COLLATE "C")'
    values = (compose(equal, t=sql.Identifier("t", name), w=sql.Identifier("w", name)) for name in _values(what))
    return joined([_TRUE, *values], " AND ")
