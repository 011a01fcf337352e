"""The seal of a table: index and analyze staging, and find rows that the commit could not apply."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import INTEGERS, STAGED_LINEAGE, UNAVAILABLE, parse_type
from epochline.declare.names import order_column
from epochline.errors import RowsRefusedError
from epochline.ports import Prepared
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, of_generation, same
from epochline.postgres.targets.conversion import convert, judged
from epochline.postgres.targets.exclusive import is_exclusive
from epochline.postgres.targets.obstacles import (
    LIMITS,
    broken_checks,
    has_long_values,
    is_no_tombstone,
    refuse_missing_rights,
    refuse_published,
    refuse_what_fills_the_rest,
)
from epochline.postgres.targets.refusals import rows_where
from epochline.postgres.targets.unavailable import keep_values
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import RefusedRow


def prepare(connection: Connection, what: Application, epoch: Epoch) -> Prepared:
    """Prepare the staging table for a short commit, and find the rows that the commit could not apply.

    Raises:
        RowsRefusedError: a key occurs in two partitions without a declared order, or a missing right, an exhausted
            sequence or a failing default would stop the commit.
    """
    unfit = judged(connection, what)
    if unfit:
        return Prepared(refused=unfit, untried=False)
    convert(connection, what)
    if what.sink.key:
        execute_sql(connection, sql.SQL("CREATE INDEX ON {} ({})").format(what.staging, names(what.sink.key)))
    execute_sql(connection, sql.SQL("ANALYZE {}").format(what.staging))
    refuse_missing_rights(connection, what)
    refuse_published(connection, what)
    refuse_what_fills_the_rest(connection, what)
    refused = _null_keys(connection, what)
    if what.sink.keep_unavailable and not refused:
        refused += keep_values(connection, what)
    refused += _nulls(connection, what)
    if what.sink.mode == "upsert" and not what.sink.order_by and not refused:
        _refuse_unordered_keys(connection, what)
    if what.sink.mode == "add":
        for measure in what.sink.measures:
            refused += _overflows(connection, what, measure)
    if what.sink.repeats == "refuse" and not refused:
        refused += _repeats(connection, what, epoch)
    broken, unknown = broken_checks(connection, what)
    return Prepared(
        refused=refused + broken,
        untried=what.target.has_other_rules
        or what.target.is_changed_by_others
        or is_exclusive(what)
        or unknown
        or any(what.target.columns[name].shape.is_judged for name in what.sink.measures)
        or has_long_values(connection, what),
        reads_others=what.target.is_changed_by_others,
    )


def _first(connection: Connection, statement: sql.Composable) -> tuple[object, ...] | None:
    rows = execute_sql(connection, statement)[1]
    return rows[0] if rows else None


def _is_null(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in columns)


def _null_keys(connection: Connection, what: Application) -> list[RefusedRow]:
    """Rows with a NULL in a column of the key or of the order. NULL cannot be compared."""
    orders = [order_column(name) for name in what.sink.order_by]
    refused = []
    for role, columns in (("key", what.sink.key), ("order_by", orders)):
        if columns:
            refused += rows_where(connection, what, _is_null(columns), f"a NULL in its {role} ({', '.join(columns)})")
    return refused


def _nulls(connection: Connection, what: Application) -> list[RefusedRow]:
    """Rows with a NULL for another NOT NULL column. Sums and tombstones cannot have one."""
    if what.sink.mode == "add":
        return []
    others = [name for name in what.carried if name not in what.sink.key and name in what.target.columns]
    columns = [name for name in others if what.target.columns[name].not_null]
    if not columns:
        return []
    said = f"a NULL in one of {', '.join(columns)}, which the table declares NOT NULL"
    condition = sql.SQL("{} AND ({})").format(is_no_tombstone(what), _is_null(columns))
    if what.sink.keep_unavailable:
        condition += sql.SQL(" AND {} IS NULL").format(sql.Identifier(UNAVAILABLE))  # superseded: see `keep_values`
    return rows_where(connection, what, condition, said)


def _repeats(connection: Connection, what: Application, epoch: Epoch) -> list[RefusedRow]:
    """Rows whose unique key the target or an earlier staged row has. A replay takes the place of its epoch's rows."""
    key = what.sink.key
    others: sql.Composable = sql.SQL("true")
    if epoch.replays is not None:
        others = sql.SQL("t._epoch IS DISTINCT FROM {}").format(sql.Literal(epoch.replays))
    place = names(list(STAGED_LINEAGE), "s")
    earlier: sql.Composable = sql.SQL("({}) < ({})").format(names(list(STAGED_LINEAGE), "e"), place)
    if what.sink.aggregated:
        earlier = sql.SQL("e.ctid < s.ctid")
    elif what.sink.key_is_place:
        earlier = sql.SQL("e.ctid <> s.ctid")
    condition = sql.SQL(
        "EXISTS (SELECT FROM {target} t WHERE {same} AND {others})"
        " OR EXISTS (SELECT FROM {staging} e WHERE {same_staged} AND {earlier})"
    ).format(
        target=what.target.identifier, same=same(key, "t", "s"), others=others, staging=what.staging,
        same_staged=same(key, "e", "s"), earlier=earlier,
    )  # fmt: skip
    return rows_where(connection, what, condition, f"a repeat of its key ({', '.join(key)})")


def _refuse_unordered_keys(connection: Connection, what: Application) -> None:
    """Refuse a key that occurs in two partitions without a declared order: offsets order one partition only."""
    key = names(what.sink.key)
    if what.sink.aggregated:
        twice = sql.SQL("SELECT {key} FROM {staging} GROUP BY {key} HAVING count(*) > 1 LIMIT 1")
    else:
        twice = sql.SQL(
            "SELECT {key} FROM {staging} GROUP BY {key} HAVING count(DISTINCT (_topic, _partition)) > 1 LIMIT 1"
        )
    found = _first(connection, twice.format(key=key, staging=what.staging))
    if found is None and not what.sink.aggregated:
        anything = sql.SQL("true")
        # Rows of an earlier generation are older than all rows of this one, in every partition.
        ours = of_generation(what, "t") if what.last_earlier_epoch else anything
        others = [(what.deleted_keys, anything)] + ([(what.target.identifier, ours)] if what.kept_order else [])
        for other, compared in others:
            found = found or _first(
                connection,
                sql.SQL(
                    "SELECT {key} FROM {staging} s JOIN {other} t ON {same}"
                    " WHERE (s._topic, s._partition) <> (t._topic, t._partition) AND {compared} LIMIT 1"
                ).format(
                    compared=compared,
                    key=names(what.sink.key, "s"),
                    staging=what.staging,
                    other=other,
                    same=same(what.sink.key, "s", "t"),
                ),
            )
    if found is not None:
        raise RowsRefusedError(
            f"{epoch_of(what)}: a key of {what.sink} was met twice without an order between its records (in two"
            " partitions, or twice in aggregated rows). Declare order_by for this sink. Nothing was sealed."
        )


def _overflows(connection: Connection, what: Application, measure: str) -> list[RefusedRow]:
    kind = parse_type(what.target.columns[measure].shape.base)
    if kind.name in INTEGERS:
        low, high = LIMITS[kind.name]
        limit = sql.SQL("NOT BETWEEN {} AND {}").format(sql.Literal(low), sql.Literal(high))
    elif kind.precision is not None:
        # The largest value has as many nines as the precision.
        most = sql.SQL("(10::numeric ^ {} - 1) / 10::numeric ^ {}").format(
            sql.Literal(kind.precision), sql.Literal(kind.scale or 0)
        )
        limit = sql.SQL("NOT BETWEEN -({most}) AND {most}").format(most=most)
    else:
        return []
    sums = sql.SQL("(SELECT {key}, sum({m}) AS _total FROM {staging} GROUP BY {key})").format(
        key=names(what.sink.key), m=sql.Identifier(measure), staging=what.staging
    )
    condition = sql.SQL("coalesce((SELECT t.{m} FROM {target} t WHERE {same}), 0)::numeric + s._total {limit}").format(
        m=sql.Identifier(measure), target=what.target.identifier, same=same(what.sink.key, "s", "t"), limit=limit
    )
    said = f"a sum of {measure} would not fit {kind}. Use a wider column"
    return rows_where(connection, what, condition, said, sums)


def epoch_of(what: Application) -> str:
    """The pipeline and the staging table, for messages."""
    return f"{what.pipeline.name} ({what.staged.table})"
