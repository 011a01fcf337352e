"""Write an upsert whose rows pass values on that only one row may hold, where no plain statement can (ADR 0041).

PostgreSQL compares a unique value when a row is written, so rows are written in turns: each after the row that gives
its value up. Rows that the epoch deletes go first. Rows that wait for each other, as two keys that swap, give their
values up by NULL. Where a column does not take NULL they are deleted and inserted in one statement, with all their
columns, if nothing else sees the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg2
from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import FOLLOWED, split_table
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, same
from epochline.postgres.targets.exclusive import (
    FATE,
    FATES,
    NUMBER,
    TURN,
    Meeting,
    exclusive_rules,
    give_turns,
    keep_fates,
    made_columns,
    waits,
)
from epochline.postgres.targets.fates import replaces
from epochline.postgres.targets.refusals import attempt
from epochline.protocol.epoch import Epoch
from epochline.protocol.turns import turns

Write = Callable[..., int]
"""Writes the winners in their turns; with a condition on ``f`` of `FATES`, those that meet it."""


def make_way(
    connection: Connection,
    what: Application,
    epoch: Epoch,
    write: Write,
    delete_early: Callable[[], None],
    cause: psycopg2.Error,
) -> int:
    """Write the winners of an epoch so that each value is free when its row is written; returns the rows written.

    Args:
        connection: in the epoch's transaction.
        what: the staging and its target.
        epoch: the epoch.
        write: the statement.
        delete_early: deletes the rows that the epoch deletes.
        cause: PostgreSQL's refusal of the plain statement, after which nothing was changed.

    Raises:
        psycopg2.Error: ``cause``, with a note that says why no way is left.
    """
    keep_fates(connection, what)
    rules = exclusive_rules(connection, what)
    meetings = attempt(connection, partial(waits, connection, what, epoch, rules), keep=False)
    if isinstance(meetings, psycopg2.Error):
        raise cause  # An expression of an index fails for a row.
    if any(one.leaves for one in meetings) and not _deletes_reach_targets(connection, what):
        gone = attempt(connection, delete_early)
        if gone is None:
            meetings = [one for one in meetings if not one.leaves]
    order = turns((one.taker, one.holder) for one in meetings if not one.leaves)
    leaving = {one.holder for one in meetings if one.leaves}
    give_turns(connection, [*order.before, *order.circle, *order.after])
    stuck = {*order.circle, *leaving}
    ways: list[Callable[[], int | str]] = [write]
    if stuck:
        ways = [partial(_through_null, connection, what, write, meetings, stuck)]
        if not leaving:
            ways.append(partial(_replaced, connection, what, epoch, write, order.circle))
    reasons: list[str] = []
    for way in ways:
        done = attempt(connection, partial(_all_or_nothing, connection, way))
        if isinstance(done, int):
            return done
        reasons += [done] if isinstance(done, str) else []
    if stuck:
        cause.add_note(
            f"{len(stuck)} rows exchange values or take those of rows that go, and no statement can write them:"
            f" {'; '.join(reasons) or 'the table refuses it'}; a DEFERRABLE constraint, or a column"
            " that takes NULL, lets them pass"
        )
    raise cause


def _all_or_nothing(connection: Connection, way: Callable[[], int | str]) -> int | str:
    """The rows that a way wrote, or the reason why it is none; then nothing was changed."""
    execute_sql(connection, sql.SQL("SAVEPOINT way"))
    done = way()
    if isinstance(done, str):
        execute_sql(connection, sql.SQL("ROLLBACK TO SAVEPOINT way"))
    execute_sql(connection, sql.SQL("RELEASE SAVEPOINT way"))
    return done


def _deletes_reach_targets(connection: Connection, what: Application) -> bool:
    """Whether deleting rows early would take other rows of this pipeline along, which a later statement may save."""
    ours = {split_table(sink.table) for sink in what.pipeline.tables}
    for key in what.target.foreign_keys_to_it:
        if key.child not in ours or not key.deletes_change_children:
            continue
        refers = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("c", name), sql.Identifier("t", referenced))
            for name, referenced in zip(key.columns, key.referenced, strict=True)
        )
        stays: sql.Composable = sql.SQL("true")
        if key.child == key.parent:
            stays = sql.SQL("NOT EXISTS (SELECT FROM {} g WHERE {} AND g.{} = 'deleted')").format(
                FATES, same(what.sink.key, "g", "c"), sql.Identifier(FATE)
            )
        statement = sql.SQL(
            "SELECT FROM {fates} w JOIN {target} t ON {same} JOIN {child} c ON {refers}"
            " WHERE w.{fate} = 'deleted' AND {stays} LIMIT 1"
        ).format(
            fates=FATES, target=what.target.identifier, same=same(what.sink.key, "t", "w"), refers=refers, stays=stays,
            child=sql.Identifier(*key.child), fate=sql.Identifier(FATE),
        )  # fmt: skip
        if execute_sql(connection, statement)[1]:
            return True
    return False


def _through_null(
    connection: Connection, what: Application, write: Write, meetings: Sequence[Meeting], stuck: set[int]
) -> int | str:
    """Give values up by NULL, then write; or why not."""
    code = _code(connection, what)
    if code.sees_deletes and any(one.leaves for one in meetings):
        return "a trigger or rule sees deleted rows, which must keep their values"
    columns: set[str] = set()
    for rule in {one.rule.name: one.rule for one in meetings if one.holder in stuck}.values():
        takes = [name for name in rule.columns or rule.read if _takes_null(what, name)]
        if not takes:
            return f"no column of {rule.name} can be NULL for a moment"
        columns |= {*takes}
    statement = sql.SQL(
        "UPDATE {target} t SET {nulls} FROM {fates} w WHERE {same} AND w.{number} = ANY ({stuck})"
    ).format(
        target=what.target.identifier, fates=FATES, same=same(what.sink.key, "t", "w"), number=sql.Identifier(NUMBER),
        nulls=sql.SQL(", ").join(sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in sorted(columns)),
        stuck=sql.Literal(sorted(stuck)),
    )  # fmt: skip
    if execute_sql(connection, statement)[0] != len(stuck):
        return "a trigger or rule keeps rows as they are"
    return write()


def _takes_null(what: Application, name: str) -> bool:
    """Whether the epoch writes a column that can be NULL before, without a change in another table."""
    column = what.target.columns[name]
    followed = any(name in key.referenced and key.updates_change_children for key in what.target.foreign_keys_to_it)
    return (
        not column.not_null and name in what.carried and name not in (*what.sink.key, *what.kept_order) and not followed
    )


def _replaced(
    connection: Connection, what: Application, epoch: Epoch, write: Write, circle: Sequence[int]
) -> int | str:
    """Write what comes before the circle, delete and insert the circle in one statement, write the rest; or why not."""
    if _code(connection, what).sees_rewriting:
        return "a trigger or rule would see rows deleted and inserted instead of updated"
    if any(key.deletes_change_children for key in what.target.foreign_keys_to_it):
        return "a foreign key would delete or change the rows of another table"
    columns, _ = made_columns(connection, what, epoch)
    turn = sql.Identifier("f", TURN)
    ends = sql.SQL("(SELECT {}({}) FROM {} WHERE {} = ANY ({}))")
    first, last = (
        ends.format(sql.SQL(end), sql.Identifier(TURN), FATES, sql.Identifier(NUMBER), sql.Literal(list(circle)))
        for end in ("min", "max")
    )
    before = write(sql.SQL("({} < {}) IS NOT FALSE").format(turn, first))
    statement = sql.SQL(
        "WITH w AS (SELECT * FROM {fates} WHERE {number} = ANY ({circle})),"
        " t AS (DELETE FROM {target} AS t USING w WHERE {same} AND {newer} RETURNING t.*)"
        # Counting the deleted rows comes first, so that all of them are gone before one is inserted.
        " INSERT INTO {target} ({into}) OVERRIDING SYSTEM VALUE SELECT {values} FROM w JOIN t ON {same}"
        " WHERE (SELECT count(*) FROM t) = {count}"
    ).format(
        fates=FATES, number=sql.Identifier(NUMBER), circle=sql.Literal(list(circle)), target=what.target.identifier,
        same=same(what.sink.key, "t", "w"), newer=replaces(what, "w", "t"), count=sql.Literal(len(circle)),
        into=sql.SQL(", ").join(map(sql.Identifier, columns)), values=sql.SQL(", ").join(columns.values()),
    )  # fmt: skip
    if execute_sql(connection, statement)[0] != len(circle):
        return "a trigger or rule keeps rows as they are"
    return before + len(circle) + write(sql.SQL("{} > {}").format(turn, last))


def _code(connection: Connection, what: Application) -> _Code:
    row = run(connection, "code_of_table", oid=what.target.oid, state_triggers=FOLLOWED).one()
    return _Code(sees_rewriting=row.sees_rewriting, sees_deletes=row.sees_deletes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    """What triggers and rules of a target would notice."""

    sees_rewriting: bool
    sees_deletes: bool
