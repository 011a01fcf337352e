"""Values that only one row of a target may hold: its further unique indexes and exclusion constraints (ADR 0041).

The fates of an epoch's rows are kept in a temporary table, and the rows that the epoch makes of the target are compared
with those that it finds there, by the target's own expressions and operators.

PostgreSQL compares a unique value when a row is written, so `make_way` writes rows in turns: each after the row that
gives its value up. Rows that the epoch deletes go first. Rows that wait for each other, as two keys that swap, give
their values up by NULL. Where a column does not take NULL they are deleted and inserted in one statement, with all
their columns, if nothing else sees the difference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg2
from psycopg2 import sql

from epochline.declare.columns import STAGED_LINEAGE
from epochline.declare.names import split_table
from epochline.postgres.queries.statements import Connection, change, compose, joined, names, pairs, run, same
from epochline.postgres.targets.application import FATE, Application, attempt
from epochline.postgres.targets.catalog import Target
from epochline.postgres.targets.fates import replaces, with_fate
from epochline.protocol.turns import turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveRule:
    """One index or constraint: no two rows for which its condition holds may agree in all its elements."""

    name: str
    elements: Sequence[Mapping[str, Any]]
    condition: str | None
    columns: Sequence[str]
    """The columns that are elements by themselves."""
    read: Sequence[str]
    """All columns that expressions and condition read, too."""
    nulls_are_equal: bool
    excludes: bool
    """Whether it is an exclusion constraint."""

    @property
    def violation(self) -> str:
        """What PostgreSQL says of a row that breaks it."""
        if self.excludes:
            return f'conflicting key value violates exclusion constraint "{self.name}"'
        return f'duplicate key value violates unique constraint "{self.name}"'


def is_exclusive(what: Application) -> bool:
    """Whether rows of different keys may exclude each other. The catalog says so without another query."""
    return what.target.exclusive or bool(what.target.unique_keys - {frozenset(what.sink.key)})


def exclusive_rules(connection: Connection, target: Target, key: Sequence[str]) -> list[ExclusiveRule]:
    """The rules of a target beyond its key."""
    rows = run(connection, "exclusive_rules", oid=target.oid, key=list(key)).mappings()
    return [ExclusiveRule(**row) for row in rows]


def keep_fates(what: Application) -> None:
    """Keep each winner that changes the target, with its fate, numbered in the order of records, in `FATES`."""
    order = [name for name in STAGED_LINEAGE if name in what.staged.columns] or what.sink.key
    fated = with_fate(what, names(what.staged.columns, "w"), FATE)
    what.change("DROP TABLE IF EXISTS {fates}")
    what.change(
        "CREATE TABLE {fates} AS SELECT f.*, row_number() OVER (ORDER BY {order}) AS {number},"
        " NULL::bigint AS {turn} FROM ({fated}) f WHERE {fate} IN ('inserted', 'updated', 'deleted')",
        order=names(order, "f"), fated=fated,
    )  # fmt: skip
    what.change("ANALYZE {fates}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Two rows of an epoch that agree in the elements of a rule: one takes a value, and one gives it up."""

    taker: int
    holder: int
    leaves: bool
    """Whether the epoch deletes the holder."""
    rule: ExclusiveRule


def _meetings(what: Application, rules: Sequence[ExclusiveRule]) -> list[_Meeting]:
    """Rows of `FATES` that take a value which another row of the epoch gives up."""
    freed = what.compose(
        "SELECT w.{number}, w.{fate}, t.* FROM {fates} w JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('updated', 'deleted')",
    )
    new_rows = _made(what)
    return [
        _Meeting(taker=taker, holder=holder, leaves=leaves, rule=rule)
        for rule in rules
        for taker, holder, leaves in what.query(
            "SELECT DISTINCT n.{number}, o.{number}, o.{fate} = 'deleted'"
            " FROM ({made}) n JOIN ({freed}) o ON {agree} AND n.{number} <> o.{number}",
            made=_as_indexed(what, rule, new_rows), freed=_as_indexed(what, rule, freed), agree=_agree(rule),
        )
    ]  # fmt: skip


Taker = tuple[int, ExclusiveRule]
"""A row of `FATES` that takes a value which it cannot have, and the rule that says so."""


def broken(what: Application, rules: Sequence[ExclusiveRule]) -> tuple[list[Taker], list[Taker]]:
    """Rows that cannot be there in the end: another row holds their value and keeps it.

    Returns:
        Those whose value a row holds that the epoch does not change; and of two rows of the epoch, the one of the later
        record. Where the earlier one cannot be there either, the later one is left for the next call.
    """
    kept = what.compose(
        "SELECT NULL::bigint AS {number}, NULL AS {fate}, t.* FROM {target} t"
        " WHERE NOT EXISTS (SELECT FROM {fates} w WHERE {same} AND w.{fate} IN ('updated', 'deleted'))",
    )
    new_rows = _made(what)

    def takers(others: sql.Composable, condition: sql.Composable) -> list[Taker]:
        return [
            (number, rule)
            for rule in rules
            # Thousands of rows with one value are millions of pairs: one holder is enough.
            for (number,) in what.query(
                "SELECT n.{number} FROM ({made}) n WHERE EXISTS (SELECT FROM ({o}) o WHERE {agree} AND {condition})",
                made=_as_indexed(what, rule, new_rows), o=_as_indexed(what, rule, others), agree=_agree(rule),
                condition=condition,
            )
        ]  # fmt: skip

    held = takers(kept, sql.SQL("true"))
    later = what.compose("n.{number} > o.{number}")
    among = takers(new_rows, later)
    if among:
        gone = [number for number, _ in [*held, *among]]
        among = takers(new_rows, later + what.compose(" AND o.{number} <> ALL ({gone}::bigint[])", gone=gone))
    return held, among


def _as_indexed(what: Application, rule: ExclusiveRule, rows: sql.Composable) -> sql.Composed:
    """The elements of a rule for rows of the target's form, as its index holds them."""
    elements = []
    for element in rule.elements:
        elements.append(compose("({expression})", expression=sql.SQL(element["expression"])))
        if element["collation"]:
            elements[-1] += compose(" COLLATE {collation}", collation=sql.Identifier(*element["collation"]))
    listed = joined(compose("{e} AS {name}", e=element, name=f"e{at}") for at, element in enumerate(elements))
    if rule.nulls_are_equal:
        # PostgreSQL takes NULLs for equal where it compares whole rows.
        listed = compose("ROW({elements}) AS e0", elements=joined(elements))
    return what.compose(
        "SELECT {number}, {fate}, {listed} FROM ({rows}) AS {name} WHERE {condition}",
        listed=listed, rows=rows, name=what.target.name, condition=sql.SQL(rule.condition or "true"),
    )  # fmt: skip


def _agree(rule: ExclusiveRule) -> sql.Composable:
    if rule.nulls_are_equal:
        return sql.SQL("n.e0 = o.e0")
    elements = []
    for at, element in enumerate(rule.elements):
        schema, operator = element["operator"]
        operator_in = compose("OPERATOR({schema}.{operator})", schema=schema, operator=sql.SQL(operator))
        elements.append(compose("n.{e} {operator} o.{e}", e=f"e{at}", operator=operator_in))
    return joined(elements, " AND ")


def _made(what: Application) -> sql.Composed:
    """The rows that the epoch makes of the target, as a query with number and fate."""
    columns, generated = _made_columns(what)
    base = what.compose(
        "SELECT w.{number}, w.{fate}, {columns} FROM {fates} w LEFT JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('inserted', 'updated')",
        columns=_listed(columns),
    )  # fmt: skip
    if not generated:
        return base
    listed = _listed(generated)
    return compose("SELECT {name}.*, {more} FROM ({base}) AS {name}", name=what.target.name, more=listed, base=base)


def _made_columns(what: Application) -> tuple[dict[str, sql.Composable], dict[str, sql.Composable]]:
    """The columns of a row that the epoch makes of ``w`` in `FATES` and its target row ``t``; the generated ones."""
    columns = what.given("w")
    generated: dict[str, sql.Composable] = {}
    for name, column in what.target.columns.items():
        if column.generated:
            generated[name] = sql.SQL(f"({column.expression})")
        elif name not in columns:
            # The next value of a sequence excludes no row.
            expression = column.expression
            default = sql.SQL("NULL" if expression is None or "nextval(" in expression else f"({expression})")
            columns[name] = what.compose(
                "CASE WHEN w.{fate} = 'updated' THEN t.{name} ELSE CAST({made} AS {kind}) END",
                made=default, name=name, kind=sql.SQL(column.kind),
            )  # fmt: skip
    return columns, generated


def _listed(columns: Mapping[str, sql.Composable]) -> sql.Composed:
    return joined(compose("{value} AS {name}", value=value, name=name) for name, value in columns.items())


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
    meetings = attempt(connection, partial(_meetings, what, rules), keep=False)
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
        done = attempt(connection, partial(_all_or_nothing, what, way))
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


def _all_or_nothing(what: Application, way: Callable[[], int | str]) -> int | str:
    """The rows that a way wrote, or the reason why it is none; then nothing was changed."""
    change(what.connection, "SAVEPOINT way")
    done = way()
    if isinstance(done, str):
        change(what.connection, "ROLLBACK TO SAVEPOINT way")
    change(what.connection, "RELEASE SAVEPOINT way")
    return done


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


def _through_null(what: Application, write: Write, meetings: Sequence[_Meeting], stuck: set[int]) -> int | str:
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
    columns, _ = _made_columns(what)
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
