"""Apply staging to a target by set-based statements: append, add, replace. Upserts have a module of their own.

Keys are written in sorted order, so that concurrent writers do not deadlock.
"""

from collections.abc import Collection

from psycopg2 import sql

from epochline.declare.columns import STAGED_LINEAGE
from epochline.errors import TargetError
from epochline.ports import Applied, Upserted
from epochline.postgres.queries.composed import compose, joined, names
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.catalog import Place
from epochline.postgres.targets.foreign_keys import harm_of_delete


def insert(what: Application) -> Applied:
    """Insert or add the staged rows, and count what happened to them.

    Raises:
        TargetError: a row whose unique key is new or a sum was not written.
    """
    if what.sink.mode == "add":
        return Applied(rows=_add(what))
    if what.sink.repeats == "skip":
        return _append_first(what)
    return Applied(rows=_append(what))


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


def _append(what: Application) -> int:
    given = what.given("s")
    statement = "INSERT INTO {target} ({into}) SELECT {values} FROM {staging} s"
    if what.sink.key and what.sink.mode == "append":
        # The seal refused repeats. A key that another program wrote since is missing from the count.
        statement += " ON CONFLICT ({key}) DO NOTHING"
    return _insert(what, what.compose(statement, into=names(given), values=joined(given.values())))


def _insert(what: Application, statement: sql.Composable) -> int:
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
    key, given = what.sink.key, what.given("w")
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
        into=names(given), values=joined(given.values()), first=first, sorted=names(key, "w"),
    )  # fmt: skip
    written = _insert(what, statement)
    if written != due:
        raise TargetError(
            f"{what.epoch}: {due} rows with new keys were to be inserted into {what.sink}, but {written} were: a"
            " trigger or rule of the table drops rows, or another program writes to it. Nothing was changed. Remove the"
            " trigger or stop the program and repeat the task, or abort the epoch.",
            f"run {what.epoch.pipeline}",
        )
    skipped = int(staged) - written
    counted = Upserted(inserted=written, updated=0, deleted=0, superseded=0, unchanged=skipped)
    return Applied(rows=written, upserted=counted)


def sums_by_key(what: Application) -> sql.Composed:
    """The query for the staged measures, summed by key."""
    sums = joined(
        compose("CAST(coalesce(sum({m}), 0) AS {kind}) AS {m}", m=name, kind=sql.SQL(what.staged.columns[name]))
        for name in what.sink.measures
    )
    return what.compose("SELECT {key}, {sums} FROM {staging} s GROUP BY {key} ORDER BY {key}", sums=sums)


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
