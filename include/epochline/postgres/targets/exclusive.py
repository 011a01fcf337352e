"""Values that only one row of a target may hold: its further unique indexes and exclusion constraints.

The fates of an epoch's rows are kept in a temporary table, and the rows that the epoch makes of the target are compared
with those that it finds there, by the target's own expressions and operators (ADR 0041).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import STAGED_LINEAGE
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.application import Application, given_values, names, same
from epochline.postgres.targets.fates import with_fate
from epochline.protocol.epoch import Epoch

FATES = sql.Identifier("pg_temp", "epochline_fate")
NUMBER, FATE, TURN = "_epochline_number", "_epochline_fate", "_epochline_turn"
"""Columns of `FATES` beside the staged ones: the number of the row, what becomes of it, when it is written."""

_COLUMNS = {"number": sql.Identifier(NUMBER), "fate": sql.Identifier(FATE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveRule:
    """One index or constraint: no two rows for which its condition holds may agree in all its elements."""

    name: str
    elements: tuple[Mapping[str, Any], ...]
    condition: str | None
    columns: tuple[str, ...]
    """The columns that are elements by themselves."""
    read: tuple[str, ...]
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


def exclusive_rules(connection: Connection, what: Application) -> list[ExclusiveRule]:
    """The rules of a target beyond its key."""
    rows = run(connection, "exclusive_rules", oid=what.target.oid, key=list(what.sink.key))
    return [
        ExclusiveRule(
            name=row.name, elements=tuple(row.elements), condition=row.condition, columns=tuple(row.columns),
            read=tuple(row.read), nulls_are_equal=row.nulls_are_equal, excludes=row.excludes,
        )
        for row in rows
    ]  # fmt: skip


def keep_fates(connection: Connection, what: Application) -> None:
    """Keep each winner that changes the target, with its fate, numbered in the order of records, in `FATES`."""
    order = [name for name in STAGED_LINEAGE if name in what.staged.columns] or list(what.sink.key)
    execute_sql(connection, sql.SQL("DROP TABLE IF EXISTS {}").format(FATES))
    numbered = sql.SQL(
        "CREATE TABLE {fates} AS SELECT f.*, row_number() OVER (ORDER BY {order}) AS {number},"
        " NULL::bigint AS {turn} FROM ({fated}) f WHERE {fate} IN ('inserted', 'updated', 'deleted')"
    ).format(
        fates=FATES, order=names(order, "f"), number=sql.Identifier(NUMBER), turn=sql.Identifier(TURN),
        fated=with_fate(what, names(list(what.staged.columns), "w"), FATE), fate=sql.Identifier(FATE),
    )  # fmt: skip
    execute_sql(connection, numbered)
    execute_sql(connection, sql.SQL("ANALYZE {}").format(FATES))


def give_turns(connection: Connection, numbers: Sequence[int]) -> None:
    """Say in which order these rows are written."""
    statement = sql.SQL(
        "UPDATE {} f SET {} = v.turn FROM unnest({}) WITH ORDINALITY v (number, turn) WHERE f.{} = v.number"
    )
    listed = sql.SQL("{}::bigint[]").format(sql.Literal(list(numbers)))
    execute_sql(connection, statement.format(FATES, sql.Identifier(TURN), listed, sql.Identifier(NUMBER)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Two rows of an epoch that agree in the elements of a rule: one takes a value, and one gives it up."""

    taker: int
    holder: int
    leaves: bool
    """Whether the epoch deletes the holder."""
    rule: ExclusiveRule


def waits(connection: Connection, what: Application, epoch: Epoch, rules: Sequence[ExclusiveRule]) -> list[Meeting]:
    """Rows of `FATES` that take a value which another row of the epoch gives up."""
    freed = sql.SQL(
        "SELECT w.{number}, w.{fate}, t.* FROM {fates} w JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('updated', 'deleted')"
    ).format(fates=FATES, target=what.target.identifier, same=same(what.sink.key, "t", "w"), **_COLUMNS)
    made = _made(connection, what, epoch)
    found = []
    for rule in rules:
        statement = sql.SQL(
            "SELECT DISTINCT n.{number}, o.{number}, o.{fate} = 'deleted'"
            " FROM ({made}) n JOIN ({others}) o ON {agree} AND n.{number} <> o.{number}"
        ).format(
            made=_as_indexed(what, rule, made), others=_as_indexed(what, rule, freed), agree=_agree(rule), **_COLUMNS
        )
        rows = execute_sql(connection, statement)[1]
        found += [Meeting(taker=taker, holder=holder, leaves=leaves, rule=rule) for taker, holder, leaves in rows]
    return found


def broken(
    connection: Connection, what: Application, epoch: Epoch, rules: Sequence[ExclusiveRule]
) -> tuple[list[tuple[int, ExclusiveRule]], list[tuple[int, ExclusiveRule]]]:
    """Rows of `FATES` that cannot be there in the end, each with the rule: another row holds their value and keeps it.

    Returns:
        Those whose value a row holds that the epoch does not change; and of two rows of the epoch, the one of the later
        record. Where the earlier one cannot be there either, the later one is left for the next call.
    """
    kept = sql.SQL(
        "SELECT NULL::bigint AS {number}, NULL AS {fate}, t.* FROM {target} t"
        " WHERE NOT EXISTS (SELECT FROM {fates} w WHERE {same} AND w.{fate} IN ('updated', 'deleted'))"
    ).format(fates=FATES, target=what.target.identifier, same=same(what.sink.key, "t", "w"), **_COLUMNS)
    made = _made(connection, what, epoch)

    def takers(others: sql.Composable, condition: sql.Composable) -> list[tuple[int, ExclusiveRule]]:
        # Thousands of rows with one value are millions of pairs: one holder is enough.
        statement = sql.SQL(
            "SELECT n.{number} FROM ({made}) n WHERE EXISTS (SELECT FROM ({others}) o WHERE {agree} AND {condition})"
        )
        return [
            (number, rule)
            for rule in rules
            for (number,) in execute_sql(
                connection,
                statement.format(
                    made=_as_indexed(what, rule, made), others=_as_indexed(what, rule, others), agree=_agree(rule),
                    condition=condition, **_COLUMNS,
                ),
            )[1]
        ]  # fmt: skip

    out = takers(kept, sql.SQL("true"))
    later = sql.SQL("n.{number} > o.{number}").format(**_COLUMNS)
    among = takers(made, later)
    if among:
        numbers = sql.Literal([number for number, _ in [*out, *among]])
        stays = sql.SQL(" AND o.{number} <> ALL ({numbers}::bigint[])").format(numbers=numbers, **_COLUMNS)
        among = takers(made, later + stays)
    return out, among


def _as_indexed(what: Application, rule: ExclusiveRule, rows: sql.Composable) -> sql.Composed:
    """The elements of a rule for rows of the target's form, as its index holds them."""
    elements = [
        sql.SQL("({}){}").format(
            sql.SQL(one["expression"]),
            sql.SQL(" COLLATE {}").format(sql.Identifier(*one["collation"])) if one["collation"] else sql.SQL(""),
        )
        for one in rule.elements
    ]
    listed = sql.SQL(", ").join(sql.SQL("{} AS e{}").format(one, sql.SQL(str(at))) for at, one in enumerate(elements))
    if rule.nulls_are_equal:
        # PostgreSQL takes NULLs for equal where it compares whole rows.
        listed = sql.SQL("ROW({}) AS e0").format(sql.SQL(", ").join(elements))
    return sql.SQL("SELECT {number}, {fate}, {listed} FROM ({rows}) AS {name} WHERE {condition}").format(
        listed=listed, rows=rows, name=sql.Identifier(what.target.name), condition=sql.SQL(rule.condition or "true"),
        **_COLUMNS,
    )  # fmt: skip


def _agree(rule: ExclusiveRule) -> sql.Composable:
    if rule.nulls_are_equal:
        return sql.SQL("n.e0 = o.e0")
    return sql.SQL(" AND ").join(
        sql.SQL("n.e{at} OPERATOR({schema}.{operator}) o.e{at}").format(
            at=sql.SQL(str(at)), schema=sql.Identifier(one["operator"][0]), operator=sql.SQL(one["operator"][1])
        )
        for at, one in enumerate(rule.elements)
    )


def _made(connection: Connection, what: Application, epoch: Epoch) -> sql.Composed:
    """The rows that the epoch makes of the target, as a query with number and fate."""
    columns, generated = made_columns(connection, what, epoch)
    base = sql.SQL(
        "SELECT w.{number}, w.{fate}, {columns} FROM {fates} w LEFT JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('inserted', 'updated')"
    ).format(
        columns=_listed(columns), fates=FATES, target=what.target.identifier, same=same(what.sink.key, "t", "w"),
        **_COLUMNS,
    )  # fmt: skip
    if not generated:
        return base
    name = sql.Identifier(what.target.name)
    return sql.SQL("SELECT {name}.*, {generated} FROM ({base}) AS {name}").format(
        name=name, generated=_listed(generated), base=base
    )


def made_columns(
    connection: Connection, what: Application, epoch: Epoch
) -> tuple[dict[str, sql.Composable], dict[str, sql.Composable]]:
    """The columns of a row that the epoch makes of ``w`` in `FATES` and its target row ``t``; the generated ones."""
    columns = given_values(what, epoch, "w")
    expressions = {row.name: row.expression for row in run(connection, "filled_by_the_database", oid=what.target.oid)}
    generated: dict[str, sql.Composable] = {}
    for name, column in what.target.columns.items():
        default = expressions.get(name)
        if column.generated:
            generated[name] = sql.SQL(f"({default})")
        elif name not in columns:
            # The next value of a sequence excludes no row.
            fresh = "NULL" if default is None or "nextval(" in default else f"({default})"
            value = sql.SQL("CASE WHEN w.{fate} = 'updated' THEN {old} ELSE CAST({fresh} AS {kind}) END")
            columns[name] = value.format(
                old=sql.Identifier("t", name), fresh=sql.SQL(fresh), kind=sql.SQL(column.kind), **_COLUMNS
            )  # fmt: skip
    return columns, generated


def _listed(columns: Mapping[str, sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} AS {}").format(one, sql.Identifier(name)) for name, one in columns.items())
