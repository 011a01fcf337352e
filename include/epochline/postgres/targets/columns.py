"""The columns of a target, what their types are made of, and how staging holds their values (ADR 0046)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class, named as psycopg2 should have

from epochline.declare.columns import INTEGERS, keeps_order, parse_type
from epochline.declare.names import QUARANTINE
from epochline.postgres.queries.named import statement
from epochline.postgres.queries.statements import Connection, compose, run, where
from epochline.protocol.staging import StagedTable

_AS_WRITTEN = {"name", '"char"', "oid", "xid", "xid8", "cid"}
"""Types that cut a text that is too long, or read -1 as a large and 041 as an octal number: shown as it was written, a
value is exact."""

_SECONDS = ("timestamp", "time with", "interval", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange")
"""How types begin that round a second to six digits."""

_DAY = r"([+-]?infinity|epoch|[0-9]{4,7}-[0-9]{1,2}-[0-9]{1,2}{time}( (ad|bc))?)"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(:[0-5]?[0-9]([.][0-9]+)?)?"
_ZONE = "( ?([+-][0-9:]+|[a-z][a-z0-9_/+-]*))?"
_WRITTEN = {
    "date": _DAY.replace("{time}", ""),
    "timestamp without time zone": _DAY.replace("{time}", f"([t ]{_CLOCK})?"),
    "timestamp with time zone": _DAY.replace("{time}", f"([t ]{_CLOCK})?{_ZONE}"),
    "time without time zone": _CLOCK,
    "time with time zone": _CLOCK + _ZONE,
}
"""By type, a regular expression of the texts from which PostgreSQL drops nothing: it reads a date of ``2024-01-01
23:59``, a timestamp without the zone that is given, the 60th second as the next minute, and ``now`` as the time of each
attempt."""
_BETWEEN = r'[][(){},"]+'
"""What stands between the bounds of ranges, or the members of a composite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """One column of a target: a row of the statement ``columns_of_table``."""

    kind: str
    """The type as ``format_type`` spells it."""
    not_null: bool
    writable: bool
    """Whether a statement may give it a value: PostgreSQL does not generate it."""
    generated: bool = False
    """PostgreSQL computes it from other columns of the row."""
    identity: bool = False
    expression: str | None = None
    """Its default, or how it is generated."""
    labels: Sequence[str] | None = None
    """The labels of an enum."""
    collation: Sequence[str] | None = None
    """Schema and name, where it is not that of the type."""
    arrays: int
    leaf: str
    """The type without domains and arrays."""
    plain: str
    """``leaf`` without its modifier."""
    is_enum: bool
    inner: Sequence[str]
    """Types within a composite or a range."""
    inner_modified: bool
    """Whether one of them has a modifier."""

    @property
    def has_default(self) -> bool:
        """Whether PostgreSQL fills it if a statement does not."""
        return self.identity or self.expression is not None

    @property
    def required(self) -> bool:
        """Whether each row needs a value for it."""
        return self.not_null and not self.has_default

    @property
    def collate(self) -> sql.Composable:
        """``COLLATE …`` where the collation is not that of the type: staging compares values as the target does."""
        if self.collation is None:
            return sql.SQL("")
        return compose(" COLLATE {name}", name=sql.Identifier(*self.collation))

    @property
    def base(self) -> str:
        """Its type without domains, which staging has once the seal has converted it."""
        return f"{self.leaf}[]" if self.arrays else self.leaf

    @property
    def staged(self) -> str:
        """The type that writers fill: ``base`` if values are checked before staging, else text or, for money, numeric.

        An array of such values is an array of it.
        """
        try:
            by_text = parse_type(self.leaf).by_text
        except ValueError:
            by_text = True
        staged = self.leaf
        if by_text and not (self.is_enum and self.kind == self.leaf):
            staged = "numeric" if self.is_money else "text"
        return f"{staged}[]" if self.arrays else staged

    @property
    def is_judged(self) -> bool:
        """Whether PostgreSQL judges the staged values at the seal."""
        return self.kind != self.staged

    @property
    def is_money(self) -> bool:
        """Whether staging holds the column's values as numbers, which the seal turns into money."""
        return self.plain == "money"

    @property
    def adds_exactly(self) -> bool:
        """Whether sums of its values are exact."""
        return not self.arrays and self.plain in INTEGERS | {"numeric"} and self.staged == self.base

    def keeps(self, values: str) -> bool:
        """Whether it takes all values of a type unchanged, and compares them as that type does."""
        try:
            return self.kind == values or keeps_order(parse_type(self.base), parse_type(values))
        except ValueError:
            return False

    @property
    def unfit(self) -> str | None:
        """Why no value can be checked; None if values can."""
        cut = sorted((_AS_WRITTEN | {"money"}) & set(self.inner))
        if self.arrays > 1:
            return "an array of arrays"
        if self.inner_modified or cut:
            return f"and PostgreSQL rounds or cuts values of its members in silence{f': {cut[0]}' if cut else ''}"
        return None

    @property
    def changes(self) -> str | None:
        """SQL: whether an element ``k`` in the column's type differs in value from the staged element ``g``.

        None if a value that the type takes cannot differ.
        """
        if self.base == self.staged:
            return None
        if self.is_money:
            return "k::numeric IS DISTINCT FROM g"
        if self.plain == "bpchar":
            return "octet_length(k) < octet_length(g)"  # a shorter text is padded
        if self.plain in _AS_WRITTEN:
            return "k::text IS DISTINCT FROM g"
        changes = []
        if self.leaf != self.plain:
            changes.append(f"k::{self.plain} IS DISTINCT FROM g::{self.plain}")
        parts = {*self.inner} or {self.plain}
        seconds = {part for part in parts if part.startswith(_SECONDS)}
        if len(parts) == 1 and parts <= _WRITTEN.keys():
            whole = rf"^\s*(empty|{_WRITTEN[min(parts)]})?\s*$"
            changes.append(f"EXISTS (SELECT FROM regexp_split_to_table(g, '{_BETWEEN}') w WHERE w !~* '{whole}')")
        if seconds:
            # A composite may have other numbers, too.
            before = "" if seconds == parts else ":[0-9]{1,2}"
            changes.append(f"g ~ '{before}[.,][0-9]{{6}}[0-9]*[1-9]'")
        return " OR ".join(changes) or None


_FIELDS = tuple(TargetColumn.__dataclass_fields__)
"""In the order of the statement's columns after the name."""


def columns_of(connection: Connection, table: str) -> dict[str, TargetColumn]:
    """The columns of a table by name; empty if there is no such table."""
    return _by_name(run(connection, "columns_of_table", **where(table)))


def _by_name(rows: Iterable[Sequence[Any]]) -> dict[str, TargetColumn]:
    return {name: TargetColumn(**dict(zip(_FIELDS, values, strict=True))) for name, *values in rows}


def staged_types(columns: Mapping[str, str], target: Mapping[str, TargetColumn]) -> dict[str, str]:
    """The types that staging's columns, given with the types of the target, have before the seal."""
    return {name: target[name].staged if name in target else kind for name, kind in columns.items()}


def with_rules(cursor: Cursor, tables: Iterable[StagedTable]) -> tuple[StagedTable, ...]:
    """The staging tables with the types that writers fill, and with the current rules of their targets.

    A value that breaks a rule (NOT NULL, the labels of an enum) sends its record to the quarantine. Otherwise COPY or
    the seal would fail for all. The quarantine's table has no rules.
    """
    return tuple(table if table.sink == QUARANTINE else _with_rules(cursor, table) for table in tables)


def _with_rules(cursor: Cursor, table: StagedTable) -> StagedTable:
    cursor.execute(statement("columns_of_table"), where(table.sink))
    columns = _by_name(cursor.fetchall())
    staged = {name: column for name, column in columns.items() if name in table.columns}
    return replace(
        table,
        columns=staged_types(table.columns, columns),
        not_null=frozenset(name for name, column in staged.items() if column.not_null),
        labels={name: tuple(column.labels) for name, column in staged.items() if column.labels is not None},
        generated=frozenset(name for name, column in columns.items() if not column.writable and table.by_catalog),
    )
