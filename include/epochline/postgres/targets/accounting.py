"""What a target must hold after an epoch: compared with staging when every statement, trigger and cascade is done.

A statement's count of rows says nothing of what a trigger did afterwards, and nothing of a rule that wrote elsewhere.
So tables that something else than our statements may change are looked at again (INV-9, ADR 0039). PostgreSQL's own
count of the rows that the transaction changed shows whether rows were added; if it differs, the table is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import TargetError
from epochline.ports import Applied
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, names, same
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.fates import count_unsettled, winners
from epochline.postgres.targets.modes import sums_by_key
from epochline.protocol.epoch import Epoch

Check = Callable[[], object]
"""Looks at a table after the last statement; raises `TargetError` if it does not hold what it must."""


def watch(connection: Connection, what: Application, epoch: Epoch) -> Callable[[Applied], Check]:
    """Look at a target that something else may change, before staging is applied.

    Returns:
        From what was done, the check to make when all tables are applied and deferred constraints were checked.
    """
    before = _Before(
        changed=_changed_rows(connection, what),
        rows=_count(connection, what, sql.SQL("true")) if what.sink.mode == "append" and not _has_epoch(what) else 0,
        sums=_keep_sums(connection, what) if what.sink.mode == "add" else None,
    )

    def check(applied: Applied) -> None:
        # Row-level security that began after the first look hides rows from this one.
        find_target(connection, what.sink.table)
        wrong = _difference(connection, what, epoch, applied, before)
        if wrong is not None:
            raise TargetError(
                f"{epoch}: {what.sink} does not hold what was written: {wrong}. A trigger, a rule or a cascade of a"
                " foreign key drops, moves, changes or adds rows. Nothing was changed. Remove it and repeat the task,"
                " or abort the epoch.",
                f"run {epoch.pipeline}",
            )

    return lambda applied: partial(check, applied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What was known of a target before its rows were written."""

    changed: tuple[int, int, int]
    rows: int
    sums: sql.Identifier | None


def _difference(
    connection: Connection, what: Application, epoch: Epoch, applied: Applied, before: _Before
) -> str | None:
    """The difference between a target and what was applied, in words without values; None if there is none."""
    if before.sums is not None:
        return _wrong_sums(connection, what, before.sums)
    lost = None
    due = (applied.rows, 0, 0)
    if what.sink.mode == "upsert":
        wrong = count_unsettled(connection, what, epoch)
        lost = f"{wrong} keys are not as their newest record says" if wrong else None
        if applied.upserted is not None:
            lost = lost or _wrong_places(connection, what, epoch, applied.upserted.inserted + applied.upserted.updated)
            due = (applied.upserted.inserted, applied.upserted.updated, applied.upserted.deleted)
    elif what.sink.repeats == "skip":
        lost = _missing_keys(connection, what)
    changed = tuple(now - then for now, then in zip(_changed_rows(connection, what), before.changed, strict=True))
    if lost is not None or (changed == due and what.sink.mode != "replace"):
        return lost
    return _other_rows(connection, what, epoch, due[0] + due[1], before.rows)


def _other_rows(connection: Connection, what: Application, epoch: Epoch, due: int, before: int) -> str | None:
    sink = what.sink
    if sink.mode == "replace" or (sink.mode == "append" and not _has_epoch(what)):
        there = _count(connection, what, sql.SQL("true"))
        # Other programs may write to an append target at the same time, and nothing tells their rows apart.
        if there < before + due if sink.mode == "append" else there != due:
            return f"{before + due} rows are due, and {there} are there"
    if not _has_epoch(what):
        return None
    ours = sql.SQL("_epoch = {}").format(sql.Literal(epoch.epoch_id))
    there = _count(connection, what, ours)
    if there != due:
        return f"{due} rows of the epoch are due, and {there} are there"
    if sink.mode == "upsert" or sink.repeats == "skip" or not STAGED_LINEAGE.keys() <= sink.carried_lineage.keys():
        return None
    missing = sql.SQL(
        "SELECT count(*) FROM (SELECT {place} FROM {staging} EXCEPT ALL SELECT {place} FROM {target} WHERE {ours}) m"
    ).format(place=names(list(STAGED_LINEAGE)), staging=what.staging, target=what.target.identifier, ours=ours)
    [(lost,)] = execute_sql(connection, missing)[1]
    return f"{lost} rows are missing, and as many others have the epoch's number" if lost else None


def _wrong_places(connection: Connection, what: Application, epoch: Epoch, due: int) -> str | None:
    """Rows of an upsert with another epoch or position: later records of their keys would seem older."""
    if not _has_epoch(what):
        return None
    statement = sql.SQL("SELECT count(*) FROM ({}) w JOIN {} t ON {} WHERE t._epoch = {}").format(
        winners(what), what.target.identifier, same(what.sink.key, "t", "w"), sql.Literal(epoch.epoch_id)
    )
    if what.kept_order:
        kept = names(what.kept_order, "t"), names(what.kept_order, "w")
        statement += sql.SQL(" AND ({}) = ({})").format(*kept)
    [(there,)] = execute_sql(connection, statement)[1]
    return (
        f"{due} rows of the epoch are due, and {there} are there with its number and position" if there != due else None
    )


def _missing_keys(connection: Connection, what: Application) -> str | None:
    statement = sql.SQL(
        "SELECT count(*) FROM (SELECT DISTINCT {key} FROM {staging}) w WHERE NOT EXISTS (SELECT FROM {target} t"
        " WHERE {same})"
    ).format(
        key=names(what.sink.key), staging=what.staging, target=what.target.identifier,
        same=same(what.sink.key, "t", "w"),
    )  # fmt: skip
    [(missing,)] = execute_sql(connection, statement)[1]
    return f"{missing} keys are missing" if missing else None


def _keep_sums(connection: Connection, what: Application) -> sql.Identifier:
    """The sums that each staged key must have afterwards, in a temporary table. Locks the rows that the keys have."""
    key, target = what.sink.key, what.target.identifier
    lock = sql.SQL("SELECT 1 FROM {target} t WHERE EXISTS (SELECT FROM {staging} s WHERE {same}) FOR UPDATE")
    execute_sql(connection, lock.format(target=target, staging=what.staging, same=same(key, "t", "s")))
    sums = sql.Identifier("pg_temp", f"epochline_sums_{what.target.oid}")
    statement = sql.SQL(
        "CREATE TEMP TABLE {sums} ON COMMIT DROP AS SELECT {key}, {added} FROM ({by_key}) s LEFT JOIN {target} t ON"
        " {same}"
    ).format(
        sums=sql.Identifier(sums.strings[1]), key=names(key, "s"), by_key=sums_by_key(what), target=target,
        same=same(key, "t", "s"),
        added=sql.SQL(", ").join(
            sql.SQL("coalesce({}, 0) + {} AS {}").format(
                sql.Identifier("t", name), sql.Identifier("s", name), sql.Identifier(name)
            )
            for name in what.sink.measures
        ),
    )  # fmt: skip
    execute_sql(connection, statement)
    return sums


def _wrong_sums(connection: Connection, what: Application, sums: sql.Identifier) -> str | None:
    key, measures = what.sink.key, what.sink.measures
    statement = sql.SQL(
        "SELECT count(*) FROM {sums} s LEFT JOIN {target} t ON {same}"
        " WHERE {first} IS NULL OR ({there}) IS DISTINCT FROM ({due})"
    ).format(
        sums=sums, target=what.target.identifier, same=same(key, "t", "s"), first=sql.Identifier("t", key[0]),
        there=names(measures, "t"), due=names(measures, "s"),
    )  # fmt: skip
    [(wrong,)] = execute_sql(connection, statement)[1]
    return f"{wrong} keys have another sum than is due" if wrong else None


def _has_epoch(what: Application) -> bool:
    return "_epoch" in what.sink.carried_lineage


def _count(connection: Connection, what: Application, condition: sql.Composable) -> int:
    statement = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(what.target.identifier, condition)
    return int(execute_sql(connection, statement)[1][0][0])


def _changed_rows(connection: Connection, what: Application) -> tuple[int, int, int]:
    row = run(connection, "rows_changed_by_transaction", oid=what.target.oid).one()
    return row.inserted, row.updated, row.deleted
