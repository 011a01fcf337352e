"""Apply an epoch to all its targets by set-based statements, in the order that foreign keys ask for (ADR 0041).

The commit and the trial at the seal both go this way, so that what is tried is what will be done. Keys are written in
sorted order, so that concurrent writers do not deadlock.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from psycopg2 import sql

from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import TargetError
from epochline.ports import Applied, Upserted
from epochline.postgres.queries.statements import Connection, compose, joined, names
from epochline.postgres.targets.accounting import Check, sums_by_key, watch
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.catalog import Place
from epochline.postgres.targets.foreign_keys import defer, harm_of_delete, parents_first
from epochline.postgres.targets.upsert import Upsert


def in_order(tables: Sequence[Application]) -> list[Application]:
    """The tables, each after those that it refers to."""
    order, circle = parents_first([what.target for what in tables])
    places = [*order, *circle]
    return sorted(tables, key=lambda what: places.index(what.target.place))


def apply_together(
    connection: Connection,
    tables: Sequence[Application],
    at: Callable[[Application | None], None] = lambda what: None,
    *,
    watched: bool = False,
) -> tuple[dict[str, Applied], list[Check]]:
    """Apply staging to targets: rows are taken away children first, and written parents first.

    Args:
        connection: in the epoch's transaction.
        tables: to apply.
        at: told which table the next statements concern; None before constraints that waited are compared.
        watched: whether something else than these statements may change a target.

    Returns:
        By table, what happened to it; and the checks of watched tables, for the end of the transaction.

    Raises:
        psycopg2.Error: a target refuses the rows.
        TargetError: the counts of a target do not add up to its staged rows, or its rows cannot be replaced.
    """
    ordered = in_order(tables)
    watches = {what.sink.table: watch(what) for what in ordered if watched}
    defer(connection, [what.target for what in tables])
    replaced = [what for what in reversed(ordered) if what.sink.mode == "replace"]
    emptied = {what.target.place for what in replaced}
    for what in replaced:
        at(what)
        take_all_away(what, emptied)
    upserts = {what.sink.table: Upsert(what, watched=watched) for what in ordered if what.sink.mode == "upsert"}
    applied: dict[str, Applied] = {}
    for number, what in enumerate(ordered):
        at(what)
        if what.sink.table in upserts:
            later = [upserts[table.sink.table] for table in reversed(ordered[number:]) if table.sink.table in upserts]
            upserts[what.sink.table].write(partial(_delete_early, later))
        else:
            applied[what.sink.table] = _insert(what)
    for what in reversed(ordered):
        if what.sink.table in upserts:
            at(what)
            upserts[what.sink.table].delete()
            applied[what.sink.table] = upserts[what.sink.table].finish()
    at(None)
    defer(connection, [what.target for what in tables], "IMMEDIATE")
    return applied, [check(applied[table]) for table, check in watches.items()]


def _delete_early(upserts: Sequence[Upsert]) -> None:
    """Delete what the epoch deletes from these targets, in their order; all of it or nothing."""
    done: list[Upsert] = []
    try:
        for upsert in upserts:
            done += [upsert] if upsert.delete() else []
    except BaseException:
        for upsert in done:
            upsert.delete_later()
        raise


def _insert(what: Application) -> Applied:
    """Insert or add the staged rows, and count what happened to them."""
    if what.sink.mode == "add":
        return Applied(rows=_add(what))
    if what.sink.repeats == "skip":
        return _append_first(what)
    values = what.given("s")
    statement = "INSERT INTO {target} ({into}) SELECT {values} FROM {staging} s"
    if what.sink.key and what.sink.mode == "append":
        # The seal refused repeats. A key that another program wrote since is missing from the count.
        statement += " ON CONFLICT ({key}) DO NOTHING"
    return Applied(rows=_written(what, what.compose(statement, into=names(values), values=joined(values.values()))))


def take_all_away(what: Application, emptied: Collection[Place]) -> None:
    """Delete every row of a target, as of all ``emptied`` ones.

    Raises:
        TargetError: a row is still there, or rows of other tables would be deleted or changed with it.
    """
    epoch, rows = what.epoch, what.compose("SELECT * FROM {target}")
    harm = harm_of_delete(what.connection, what.target, rows, sql.SQL("true"), emptied)
    if harm is not None:
        raise TargetError(
            f"{epoch}: mode replace deletes all rows of {what.sink}: {harm}. Nothing was changed. Let the foreign key"
            " be NO ACTION DEFERRABLE INITIALLY DEFERRED, or declare mode upsert, which keeps the rows that stay.",
            f"run {epoch.pipeline}",
        )
    what.change("DELETE FROM {target}")
    if what.query("SELECT 1 FROM {target} LIMIT 1"):
        raise TargetError(
            f"{epoch}: the rows of {what.sink} were to be replaced, and rows are still there after the DELETE: a"
            " trigger or rule of the table keeps them, or another program writes to it. Nothing was changed. Remove the"
            " trigger or stop the program and repeat the task, or abort the epoch.",
            f"run {epoch.pipeline}",
        )


def _written(what: Application, statement: sql.Composable) -> int:
    """Insert rows, and count those that were written with the epoch and the position that they must have.

    A trigger may change both: a restore would then leave the row, and its record would be read again. A table with a
    rewrite rule ON INSERT is only counted: PostgreSQL refuses RETURNING there, or the statement within WITH.
    """
    tells = {"_epoch", *STAGED_LINEAGE} <= what.sink.carried_lineage.keys()
    if what.target.is_changed_by_others and tells and not what.target.rewrites_inserts:
        return what.number(
            "WITH i AS ({statement} RETURNING _epoch, {place}) SELECT count(*) FROM i WHERE _epoch = {epoch}"
            " AND ({place}) IN (SELECT {place} FROM {staging})",
            statement=statement, place=names(STAGED_LINEAGE),
        )  # fmt: skip
    return what.change("{statement}", statement=statement)


def _append_first(what: Application) -> Applied:
    """Append the first row of each key that the target lacks. A query counts them before, the statement itself after.

    Every staged row is counted (INV-9): as inserted, or as unchanged, because the table has its key already.
    """
    key, values = what.sink.key, what.given("w")
    first = what.compose(
        "SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {order}", order=names([*key, *STAGED_LINEAGE])
    )
    [(staged, due)] = what.query(
        "SELECT (SELECT count(*) FROM {staging}), (SELECT count(*) FROM ({first}) w"
        " WHERE NOT EXISTS (SELECT FROM {target} t WHERE {same}))",
        first=first,
    )
    statement = what.compose(
        "INSERT INTO {target} ({into}) SELECT {values} FROM ({first}) w ORDER BY {sorted}"
        " ON CONFLICT ({key}) DO NOTHING",
        into=names(values), values=joined(values.values()), first=first, sorted=names(key, "w"),
    )  # fmt: skip
    written = _written(what, statement)
    if written != due:
        raise TargetError(
            f"{what.epoch}: {due} rows with new keys were to be inserted into {what.sink}, but {written} were: a"
            " trigger or rule of the table drops rows, or another program writes to it. Nothing was changed. Remove the"
            " trigger or stop the program and repeat the task, or abort the epoch.",
            f"run {what.epoch.pipeline}",
        )
    unchanged = int(staged) - written
    counted = Upserted(inserted=written, updated=0, deleted=0, superseded=0, unchanged=unchanged)
    return Applied(rows=written, upserted=counted)


def _add(what: Application) -> int:
    due = what.number("SELECT count(*) FROM (SELECT DISTINCT {key} FROM {staging}) k")
    written = what.change(
        "INSERT INTO {target} AS t ({key}, {measures}) {by_key} ON CONFLICT ({key}) DO UPDATE SET {added}",
        measures=names(what.sink.measures), by_key=sums_by_key(what),
        added=joined(compose("{m} = coalesce(t.{m}, 0) + excluded.{m}", m=name) for name in what.sink.measures),
    )  # fmt: skip
    if written != due:
        raise TargetError(
            f"{what.epoch}: the sums of {due} keys were to be added to {what.sink}, and those of {written} were: a"
            " trigger or rule of the table drops rows. Nothing was changed. Remove it and repeat the task, or abort the"
            " epoch.",
            f"run {what.epoch.pipeline}",
        )
    return written
