"""At the seal: index and analyze staging, and refuse what the commit could not apply. What is sealed must commit."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.columns import INTEGERS, parse_type
from epochline.epoch import Epoch
from epochline.errors import SealRefusedError, TargetError
from epochline.layout import DELETED
from epochline.ledger.cursor import execute_sql
from epochline.names import order_column
from epochline.sinks.application import Application, names, of_generation, same
from epochline.sinks.modes import apply

_LIMITS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}


def prepare(connection: Connection, what: Application, epoch: Epoch) -> None:
    """Make the staging table ready for a short commit.

    Raises:
        SealRefusedError: a key is NULL, is met in two partitions without a declared order, a sum does not fit, or a
            rule of the target refuses the rows.
    """
    if what.sink.key:
        execute_sql(connection, sql.SQL("CREATE INDEX ON {} ({})").format(what.staging, names(what.sink.key)))
    execute_sql(connection, sql.SQL("ANALYZE {}").format(what.staging))
    if what.sink.key:
        _refuse_null_keys(connection, what)
    _refuse_nulls(connection, what)
    if what.sink.mode == "upsert" and not what.sink.order_by:
        _refuse_unordered_keys(connection, what)
    if what.sink.mode == "add":
        for measure in what.sink.measures:
            _refuse_overflow(connection, what, measure)
    own_key = frozenset({frozenset(what.sink.key)})
    if what.target.has_other_rules or what.target.unique_keys - own_key:
        _try_it(connection, what, epoch)


def _first(connection: Connection, statement: sql.Composable) -> tuple[object, ...] | None:
    rows = execute_sql(connection, statement)[1]
    return rows[0] if rows else None


def _is_null(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(name)) for name in columns)


def _refuse_null_keys(connection: Connection, what: Application) -> None:
    """A NULL equals nothing and comes neither before nor after anything: it can be no key and no order."""
    orders = [order_column(name) for name in what.sink.order_by]
    for role, columns in (("key", what.sink.key), ("order_by", orders)):
        if columns and _first(
            connection, sql.SQL("SELECT 1 FROM {} WHERE {} LIMIT 1").format(what.staging, _is_null(columns))
        ):
            raise SealRefusedError(
                f"{epoch_of(what)}: a row for {what.sink} has a NULL in its {role} ({', '.join(columns)})."
                " Nothing was sealed."
            )


def _refuse_nulls(connection: Connection, what: Application) -> None:
    """A NULL for a NOT NULL column; sums and tombstones bring none."""
    if what.sink.mode == "add":
        return
    columns = [name for name in what.carried if name in what.target.columns and what.target.columns[name].not_null]
    if not columns:
        return
    rows = sql.SQL("NOT {}").format(sql.Identifier(DELETED)) if what.sink.mode == "upsert" else sql.SQL("true")
    statement = sql.SQL("SELECT 1 FROM {} WHERE {} AND ({}) LIMIT 1").format(what.staging, rows, _is_null(columns))
    if _first(connection, statement):
        raise SealRefusedError(
            f"{epoch_of(what)}: a row for {what.sink} has a NULL in one of {', '.join(columns)}, which the table"
            " declares"
            " NOT NULL. Nothing was sealed."
        )


def _refuse_unordered_keys(connection: Connection, what: Application) -> None:
    """Offsets order the records of one partition only: a key met in two needs a declared order."""
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
        # What an earlier generation wrote is older than any row of this one, whatever its partition.
        ours = of_generation(what, "t") if what.superseded else anything
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
        raise SealRefusedError(
            f"{epoch_of(what)}: a key of {what.sink} was met twice without an order between its records (in two"
            " partitions,"
            " or twice in aggregated rows). Declare order_by for this sink. Nothing was sealed."
        )


def _refuse_overflow(connection: Connection, what: Application, measure: str) -> None:
    kind = parse_type(what.staged.columns[measure])
    if kind.name in INTEGERS:
        limit = sql.SQL("NOT BETWEEN {} AND {}").format(
            sql.Literal(-_LIMITS[kind.name]), sql.Literal(_LIMITS[kind.name] - 1)
        )
    elif kind.precision is not None:
        # The largest value has as many nines as the precision says.
        most = sql.SQL("(10::numeric ^ {} - 1) / 10::numeric ^ {}").format(
            sql.Literal(kind.precision), sql.Literal(kind.scale or 0)
        )
        limit = sql.SQL("NOT BETWEEN -({most}) AND {most}").format(most=most)
    else:
        return
    statement = sql.SQL(
        "SELECT 1 FROM (SELECT {key}, sum({m}) AS _total FROM {staging} GROUP BY {key}) s LEFT JOIN {target} t ON"
        " {same}"
        " WHERE coalesce(t.{m}, 0)::numeric + s._total {limit} LIMIT 1"
    ).format(
        key=names(what.sink.key),
        m=sql.Identifier(measure),
        staging=what.staging,
        target=what.target.identifier,
        same=same(what.sink.key, "s", "t"),
        limit=limit,
    )
    if _first(connection, statement):
        raise SealRefusedError(
            f"{epoch_of(what)}: a sum of {measure} in {what.sink} would not fit {kind}. Use a wider column. Nothing"
            " was sealed."
        )


def _try_it(connection: Connection, what: Application, epoch: Epoch) -> None:
    """Apply the rows and take it back: the target has rules that only applying shows."""
    execute_sql(connection, sql.SQL("SAVEPOINT trial"))
    try:
        rows = apply(connection, what, epoch).rows
        execute_sql(connection, sql.SQL("SET CONSTRAINTS ALL IMMEDIATE"))
    except (psycopg2.IntegrityError, psycopg2.DataError, psycopg2.errors.RaiseException) as error:
        rule = error.diag.constraint_name or "a rule"
        # Neither the details nor what is said of a value: both would show a row in logs.
        said = type(error).__name__ if isinstance(error, psycopg2.DataError) else error.diag.message_primary
        raise SealRefusedError(
            f"{epoch_of(what)}: {what.sink} refuses the rows: {said} ({rule}). Nothing was sealed."
        ) from None
    except TargetError as error:
        raise SealRefusedError(f"{epoch_of(what)}: a trial shows that the epoch could not commit: {error}") from error
    execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT trial"))
    staged = _first(connection, sql.SQL("SELECT count(*) FROM {}").format(what.staging))
    if what.sink.mode in ("append", "replace") and staged != (rows,):
        raise SealRefusedError(
            f"{epoch_of(what)}: of the rows for {what.sink} only {rows} arrived in a trial: a trigger or rule of the"
            " table swallows rows. Take it off. Nothing was sealed."
        )


def epoch_of(what: Application) -> str:
    """The pipeline and staging table, for messages."""
    return f"{what.pipeline.name} ({what.staged.table})"
