"""Apply staging to a target by set-based statements: append, add, replace. Upserts have a module of their own.

Keys are written in sorted order, so that concurrent writers do not deadlock.
"""

from __future__ import annotations

from collections.abc import Collection

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import TargetError
from epochline.ports import Applied, Upserted
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, same, with_epoch
from epochline.postgres.targets.foreign_keys import Place
from epochline.postgres.targets.references import harm_of_delete
from epochline.protocol.epoch import Epoch

_RULE = sql.SQL("SELECT EXISTS (SELECT FROM pg_catalog.pg_rewrite WHERE ev_class = {} AND ev_type = '3')")
"""Whether a table has a rule ON INSERT: PostgreSQL then refuses RETURNING, or the statement within WITH."""


def insert(connection: Connection, what: Application, epoch: Epoch) -> Applied:
    """Insert or add the staged rows, and count what happened to them.

    Raises:
        TargetError: a row whose unique key is new or a sum was not written.
    """
    if what.sink.mode == "add":
        return Applied(rows=_add(connection, what, epoch))
    if what.sink.repeats == "skip":
        return _append_first(connection, what, epoch)
    return Applied(rows=_append(connection, what, epoch))


def take_all_away(connection: Connection, what: Application, epoch: Epoch, emptied: Collection[Place]) -> None:
    """Delete every row of a target.

    Args:
        connection: in the epoch's transaction.
        what: the target and its staging.
        epoch: the epoch.
        emptied: the targets whose rows the epoch replaces.

    Raises:
        TargetError: a row is still there, or rows of other tables would be deleted or changed with it.
    """
    target = what.target.identifier
    rows = sql.SQL("SELECT * FROM {}").format(target)
    harm = harm_of_delete(connection, what.target, rows, sql.SQL("true"), emptied)
    if harm is not None:
        raise TargetError(
            f"{epoch}: mode replace deletes all rows of {what.sink}: {harm}. Nothing was changed. Let the foreign key"
            " be NO ACTION DEFERRABLE INITIALLY DEFERRED, or declare mode upsert, which keeps the rows that stay.",
            f"run {epoch.pipeline}",
        )
    execute_sql(connection, sql.SQL("DELETE FROM {}").format(target))
    if execute_sql(connection, sql.SQL("SELECT 1 FROM {} LIMIT 1").format(target))[1]:
        raise TargetError(
            f"{epoch}: the rows of {what.sink} were to be replaced, and rows are still there after the DELETE: a"
            " trigger or rule of the table keeps them, or another program writes to it. Nothing was changed. Remove the"
            " trigger or stop the program and repeat the task, or abort the epoch.",
            f"run {epoch.pipeline}",
        )


def _append(connection: Connection, what: Application, epoch: Epoch) -> int:
    into, values = with_epoch(what, epoch, "s")
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} s").format(
        what.target.identifier, into, values, what.staging
    )
    if what.sink.key and what.sink.mode == "append":
        # The seal refused repeats. A key that another program wrote since is missing from the count.
        statement += sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(names(what.sink.key))
    return _insert(connection, what, epoch, statement)


def _insert(connection: Connection, what: Application, epoch: Epoch, statement: sql.Composable) -> int:
    """Insert rows, and count those that were written with the epoch and the position that they must have.

    A trigger may change both: a restore would then leave the row, and its record would be read again. A table with a
    rewrite rule is only counted.
    """
    place = names(list(STAGED_LINEAGE))
    if what.target.is_changed_by_others and {"_epoch", *STAGED_LINEAGE} <= what.sink.carried_lineage.keys():
        counting = sql.SQL(
            "WITH i AS ({statement} RETURNING _epoch, {place}) SELECT count(*) FROM i WHERE _epoch = {epoch}"
            " AND ({place}) IN (SELECT {place} FROM {staging})"
        ).format(statement=statement, place=place, epoch=sql.Literal(epoch.epoch_id), staging=what.staging)
        # Without a savepoint: the rows must belong to the transaction that moves the heads (INV-2).
        [(has_rule,)] = execute_sql(connection, _RULE.format(sql.Literal(what.target.oid)))[1]
        if not has_rule:
            return int(execute_sql(connection, counting)[1][0][0])
    return execute_sql(connection, statement)[0]


def _append_first(connection: Connection, what: Application, epoch: Epoch) -> Applied:
    """Append the first row of each key that the target lacks. A query counts them before, the statement itself after.

    Every staged row is counted (INV-9): as inserted, or as unchanged, because the table has its key already.
    """
    key = what.sink.key
    first = sql.SQL("SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {order}").format(
        key=names(key), staging=what.staging, order=names([*key, *STAGED_LINEAGE])
    )
    counts = sql.SQL(
        "SELECT (SELECT count(*) FROM {staging}), (SELECT count(*) FROM ({first}) w"
        " WHERE NOT EXISTS (SELECT FROM {target} t WHERE {same}))"
    ).format(staging=what.staging, first=first, target=what.target.identifier, same=same(key, "t", "w"))
    [(staged, due)] = execute_sql(connection, counts)[1]
    into, values = with_epoch(what, epoch, "w")
    statement = sql.SQL(
        "INSERT INTO {target} ({into}) SELECT {values} FROM ({first}) w ORDER BY {sorted}"
        " ON CONFLICT ({key}) DO NOTHING"
    ).format(
        target=what.target.identifier, into=into, values=values, first=first, sorted=names(key, "w"), key=names(key)
    )
    written = _insert(connection, what, epoch, statement)
    if written != due:
        raise TargetError(
            f"{epoch}: {due} rows with new keys were to be inserted into {what.sink}, but {written} were: a trigger or"
            " rule of the table drops rows, or another program writes to it. Nothing was changed. Remove the trigger or"
            " stop the program and repeat the task, or abort the epoch.",
            f"run {epoch.pipeline}",
        )
    skipped = int(staged) - written
    counted = Upserted(inserted=written, updated=0, deleted=0, superseded=0, unchanged=skipped)
    return Applied(rows=written, upserted=counted)


def sums_by_key(what: Application) -> sql.Composed:
    """The query for the staged measures, summed by key."""
    sums = sql.SQL(", ").join(
        sql.SQL("CAST(coalesce(sum({m}), 0) AS {kind}) AS {m}").format(
            m=sql.Identifier(name), kind=sql.SQL(what.staged.columns[name])
        )
        for name in what.sink.measures
    )
    return sql.SQL("SELECT {key}, {sums} FROM {staging} s GROUP BY {key} ORDER BY {key}").format(
        key=names(what.sink.key, "s"), sums=sums, staging=what.staging
    )


def _add(connection: Connection, what: Application, epoch: Epoch) -> int:
    key = names(what.sink.key)
    counts = sql.SQL("SELECT count(*) FROM (SELECT DISTINCT {} FROM {}) k").format(key, what.staging)
    [(due,)] = execute_sql(connection, counts)[1]
    added = sql.SQL(", ").join(
        sql.SQL("{m} = coalesce({old}, 0) + {new}").format(
            m=sql.Identifier(name), old=sql.Identifier("t", name), new=sql.Identifier("excluded", name)
        )
        for name in what.sink.measures
    )
    statement = sql.SQL(
        "INSERT INTO {target} AS t ({key}, {measures}) {by_key} ON CONFLICT ({key}) DO UPDATE SET {added}"
    ).format(
        target=what.target.identifier, key=key, measures=names(what.sink.measures), by_key=sums_by_key(what),
        added=added,
    )  # fmt: skip
    written = execute_sql(connection, statement)[0]
    if written != due:
        raise TargetError(
            f"{epoch}: the sums of {due} keys were to be added to {what.sink}, and those of {written} were: a trigger"
            " or rule of the table drops rows. Nothing was changed. Remove it and repeat the task, or abort the epoch.",
            f"run {epoch.pipeline}",
        )
    return written
