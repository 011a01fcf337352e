"""Apply staging to the target by set-based statements: append, upsert, add, replace.

Keys are written in sorted order, so that concurrent writers do not deadlock.
"""

from __future__ import annotations

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.ports import Applied
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.targets.application import Application, names, with_epoch
from epochline.postgres.targets.upsert import upsert
from epochline.protocol.epoch import Epoch


def apply(connection: Connection, what: Application, epoch: Epoch) -> Applied:
    """Apply staging to the target, and count what happened to its rows.

    Raises:
        TargetError: a staged row of an upsert is neither written nor older than what is there.
    """
    if what.sink.mode == "upsert":
        return upsert(connection, what, epoch)
    if what.sink.mode == "add":
        return Applied(rows=_add(connection, what))
    if what.sink.mode == "replace":
        execute_sql(connection, sql.SQL("DELETE FROM {}").format(what.target.identifier))
    return Applied(rows=_append(connection, what, epoch))


def _append(connection: Connection, what: Application, epoch: Epoch) -> int:
    into, values = with_epoch(what, epoch, "s")
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
