"""Values that only one row of a target may hold: its further unique indexes and exclusion constraints (ADR 0041).

The fates of an epoch's rows are kept in a temporary table, and the rows that the epoch makes of the target are compared
with those that it finds there, by the target's own expressions and operators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2 import sql

from epochline.declare.columns import STAGED_LINEAGE
from epochline.postgres.queries.statements import Connection, compose, joined, names, run
from epochline.postgres.targets.application import FATE, Application
from epochline.postgres.targets.catalog import Target
from epochline.postgres.targets.fates import with_fate


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
class Meeting:
    """Two rows of an epoch that agree in the elements of a rule: one takes a value, and one gives it up."""

    taker: int
    holder: int
    leaves: bool
    """Whether the epoch deletes the holder."""
    rule: ExclusiveRule


def find_meetings(what: Application, rules: Sequence[ExclusiveRule]) -> list[Meeting]:
    """Rows of `FATES` that take a value which another row of the epoch gives up."""
    freed = what.compose(
        "SELECT w.{number}, w.{fate}, t.* FROM {fates} w JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('updated', 'deleted')",
    )
    new_rows = _made(what)
    return [
        Meeting(taker=taker, holder=holder, leaves=leaves, rule=rule)
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
    columns, generated = made_columns(what)
    base = what.compose(
        "SELECT w.{number}, w.{fate}, {columns} FROM {fates} w LEFT JOIN {target} t ON {same}"
        " WHERE w.{fate} IN ('inserted', 'updated')",
        columns=_listed(columns),
    )  # fmt: skip
    if not generated:
        return base
    listed = _listed(generated)
    return compose("SELECT {name}.*, {more} FROM ({base}) AS {name}", name=what.target.name, more=listed, base=base)


def made_columns(what: Application) -> tuple[dict[str, sql.Composable], dict[str, sql.Composable]]:
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
