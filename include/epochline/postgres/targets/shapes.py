"""What the types of a target's columns are made of, and how staging holds their values (ADR 0046)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from epochline.declare.columns import parse_type
from epochline.declare.names import split_table
from epochline.postgres.queries.statements import run

_AS_WRITTEN = {"name", '"char"', "oid", "xid", "xid8", "cid"}
"""Types that cut a text that is too long, or read -1 as a large and 041 as an octal number: shown as it was written, a
value is exact."""

_SECONDS = (
    "timestamp", "time with", "interval", "tsrange", "tstzrange", "tsmultirange", "tstzmultirange",
)  # fmt: skip
"""How types begin that round a second to six digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShape:
    """One column of a target.

    Args:
        kind: the column's type.
        base: its type without domains, which staging has once the seal has converted it.
        staged: the type that writers fill: ``base`` if its values are checked before staging, else text, text[] or, for
            money, numeric.
        plain: the type without domains, arrays and modifier.
        leaf: ``plain`` with its modifier.
        is_array: whether the column is an array.
        unfit: why no value can be checked; None if values can.
        inner: types within a composite or a range.
    """

    kind: str
    base: str
    staged: str
    plain: str
    leaf: str
    is_array: bool
    unfit: str | None
    inner: frozenset[str]

    @property
    def is_judged(self) -> bool:
        """Whether PostgreSQL judges the staged values at the seal."""
        return self.kind != self.staged

    @property
    def is_money(self) -> bool:
        """Whether staging holds the column's values as numbers, which the seal turns into money."""
        return self.plain == "money"

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
        found = []
        if self.leaf != self.plain:
            found.append(f"k::{self.plain} IS DISTINCT FROM g::{self.plain}")
        parts = self.inner or {self.plain}
        seconds = {one for one in parts if one.startswith(_SECONDS)}
        if seconds:
            # A composite may have other numbers, too.
            before = "" if seconds == parts else ":[0-9]{1,2}"
            found.append(f"g ~ '{before}[.,][0-9]{{6}}[0-9]*[1-9]'")
        return " OR ".join(found) or None


def shapes_of(rows: Iterable[Sequence[Any]]) -> dict[str, ColumnShape]:
    """The shape of each column of a table; empty if there is no such table.

    Args:
        rows: of the statement ``types_of_table``.
    """
    return {row[0]: _shape(*row[1:]) for row in rows}


def table_shapes(connection: Connection, table: str) -> dict[str, ColumnShape]:
    """The shape of each column of a table; empty if there is no such table."""
    schema, name = split_table(table)
    return shapes_of(run(connection, "types_of_table", schema=schema, table=name))


def staged_types(columns: Mapping[str, str], shapes: Mapping[str, ColumnShape]) -> dict[str, str]:
    """The types of staging's columns before the seal.

    Args:
        columns: of staging, with the types of the target.
        shapes: of the target's columns.
    """
    return {name: shapes[name].staged if name in shapes else kind for name, kind in columns.items()}


def _shape(
    kind: str, arrays: int, leaf: str, plain: str, is_enum: bool, inner: list[str], inner_modified: bool
) -> ColumnShape:
    brackets = "[]" if arrays else ""
    staged = f"{_staged_leaf(leaf, plain, is_own_enum=is_enum and kind == leaf)}{brackets}"
    cut = sorted((_AS_WRITTEN | {"money"}) & set(inner))
    unfit = None
    if arrays > 1:
        unfit = "an array of arrays"
    elif inner_modified or cut:
        unfit = f"and PostgreSQL rounds or cuts values of its members in silence{f': {cut[0]}' if cut else ''}"
    return ColumnShape(
        kind=kind, base=f"{leaf}{brackets}", staged=staged, plain=plain, leaf=leaf, is_array=bool(arrays), unfit=unfit,
        inner=frozenset(inner),
    )  # fmt: skip


def _staged_leaf(leaf: str, plain: str, *, is_own_enum: bool) -> str:
    if is_own_enum:
        return leaf
    try:
        if not parse_type(leaf).by_text:
            return leaf
    except ValueError:
        pass
    return "numeric" if plain == "money" else "text"
