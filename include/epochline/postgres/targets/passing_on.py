"""Rows of an epoch that pass unique values on to each other (ADR 0041).

PostgreSQL compares a unique value when a row is written, so `make_way` writes rows in turns: each after the row that
gives its value up. Rows that the epoch deletes go first. Rows that wait for each other, as two keys that swap, give
their values up by NULL. Where a column does not take NULL they are deleted and inserted in one statement, with all
their columns, if nothing else sees the difference.
"""

from collections.abc import Callable, Sequence
from functools import partial

import psycopg2
from psycopg2 import sql

from epochline.declare.names import split_table
from epochline.postgres.queries.statements import compose, joined, names, pairs, same
from epochline.postgres.targets.application import Application, attempt
from epochline.postgres.targets.exclusive import Meeting, exclusive_rules, find_meetings, keep_fates, made_columns
from epochline.postgres.targets.fates import replaces
from epochline.protocol.turns import turns

Write = Callable[..., int]
"""Writes the winners in their turns; with a condition on ``f`` of `FATES`, those that meet it."""


def make_way(what: Application, write: Write, delete_early: Callable[[], None], cause: psycopg2.Error) -> int:
    """Write the winners of an epoch so that each value is free when its row is written; returns the rows written.

    ``delete_early`` deletes the rows that the epoch deletes. ``cause`` is PostgreSQL's refusal of the plain statement.

    Raises:
        psycopg2.Error: ``cause``, with a note that says why no way is left.
    """
    connection = what.connection
    keep_fates(what)
    rules = exclusive_rules(connection, what.target, what.sink.key)
    meetings = attempt(connection, partial(find_meetings, what, rules), keep=False)
    if isinstance(meetings, psycopg2.Error):
        raise cause  # An expression of an index fails for a row.
    if any(meeting.leaves for meeting in meetings) and not _deletes_reach_targets(what):
        refusal = attempt(connection, delete_early)
        if refusal is None:
            meetings = [meeting for meeting in meetings if not meeting.leaves]
    order = turns((meeting.taker, meeting.holder) for meeting in meetings if not meeting.leaves)
    leaving = {meeting.holder for meeting in meetings if meeting.leaves}
    what.change(
        "UPDATE {fates} f SET {turn} = v.turn FROM unnest({numbers}::bigint[]) WITH ORDINALITY v (number, turn)"
        " WHERE f.{number} = v.number",
        numbers=[*order.before, *order.circle, *order.after],
    )  # fmt: skip
    stuck = {*order.circle, *leaving}
    ways: list[Callable[[], int | str]] = [write]
    if stuck:
        ways = [partial(_through_null, what, write, meetings, stuck)]
        if not leaving:
            ways.append(partial(_replaced, what, write, order.circle))
    reasons: list[str] = []
    for way in ways:
        # A reason why a way is none leaves nothing changed.
        done = attempt(connection, way, keep=lambda done: isinstance(done, int))
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


def _deletes_reach_targets(what: Application) -> bool:
    """Whether deleting rows early would take other rows of this pipeline along, which a later statement may save."""
    ours = {split_table(sink.table) for sink in what.pipeline.tables}
    for key in what.target.foreign_keys_to_it:
        if key.child not in ours or not key.deletes_change_children:
            continue
        stays: sql.Composable = sql.SQL("true")
        if key.child == key.parent:
            deleted = "EXISTS (SELECT FROM {fates} g WHERE {same} AND g.{fate} = 'deleted')"
            stays = sql.SQL("NOT ") + what.compose(deleted, same=same(what.sink.key, "g", "c"))
        refers = pairs(zip(key.columns, key.referenced, strict=True), "c", "t")
        if what.query(
            "SELECT FROM {fates} w JOIN {target} t ON {same} JOIN {child} c ON {refers}"
            " WHERE w.{fate} = 'deleted' AND {stays} LIMIT 1",
            child=sql.Identifier(*key.child), stays=stays, refers=refers,
        ):  # fmt: skip
            return True
    return False


def _through_null(what: Application, write: Write, meetings: Sequence[Meeting], stuck: set[int]) -> int | str:
    """Give values up by NULL, then write; or why not."""
    if what.target.sees_deletes and any(meeting.leaves for meeting in meetings):
        return "a trigger or rule sees deleted rows, which must keep their values"
    columns: set[str] = set()
    for rule in {meeting.rule.name: meeting.rule for meeting in meetings if meeting.holder in stuck}.values():
        takes = {name for name in rule.columns or rule.read if _takes_null(what, name)}
        if not takes:
            return f"no column of {rule.name} can be NULL for a moment"
        columns |= takes
    emptied = what.change(
        "UPDATE {target} t SET {nulls} FROM {fates} w WHERE {same} AND w.{number} = ANY ({stuck})",
        nulls=joined(compose("{c} = NULL", c=name) for name in sorted(columns)), stuck=sorted(stuck),
    )  # fmt: skip
    return write() if emptied == len(stuck) else "a trigger or rule keeps rows as they are"


def _takes_null(what: Application, name: str) -> bool:
    """Whether the epoch writes a column that can be NULL before, without a change in another table."""
    if what.target.columns[name].not_null or name not in what.carried or name in (*what.sink.key, *what.kept_order):
        return False
    return not any(name in key.referenced and key.updates_change_children for key in what.target.foreign_keys_to_it)


def _replaced(what: Application, write: Write, circle: Sequence[int]) -> int | str:
    """Write what comes before the circle, delete and insert the circle in one statement, write the rest; or why not."""
    if what.target.sees_rewriting:
        return "a trigger or rule would see rows deleted and inserted instead of updated"
    if any(key.deletes_change_children for key in what.target.foreign_keys_to_it):
        return "a foreign key would delete or change the rows of another table"
    columns, _ = made_columns(what)
    of_circle = what.compose("FROM {fates} WHERE {number} = ANY ({circle})", circle=list(circle))
    before = write(what.compose("(f.{turn} < (SELECT min({turn}) {of})) IS NOT FALSE", of=of_circle))
    replaced = what.change(
        "WITH w AS (SELECT * {of_circle}),"
        " t AS (DELETE FROM {target} AS t USING w WHERE {same} AND {newer} RETURNING t.*)"
        # Counting the deleted rows comes first, so that all of them are gone before one is inserted.
        " INSERT INTO {target} ({into}) OVERRIDING SYSTEM VALUE SELECT {values} FROM w JOIN t ON {same}"
        " WHERE (SELECT count(*) FROM t) = {count}",
        newer=replaces(what, "w", "t"), into=names(columns), values=joined(columns.values()), count=len(circle),
        of_circle=of_circle,
    )  # fmt: skip
    if replaced != len(circle):
        return "a trigger or rule keeps rows as they are"
    return before + replaced + write(what.compose("f.{turn} > (SELECT max({turn}) {of})", of=of_circle))
