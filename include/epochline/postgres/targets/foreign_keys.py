"""Foreign keys between the targets of a pipeline: the order in which an epoch writes them, and what no order fits.

Rows are written parents first and taken away children first. What a constraint that can be deferred says is compared at
the end, so it asks for no order (ADR 0041).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.errors import TargetError
from epochline.postgres.queries.composed import as_text, execute_sql

if TYPE_CHECKING:
    from epochline.postgres.targets.catalog import Target

_NO_ACTION = "a"
_CHANGES_CHILDREN = frozenset("cnd")
"""CASCADE, SET NULL and SET DEFAULT, as ``pg_constraint`` writes them."""

Place = tuple[str, str]
"""Schema and name of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """One foreign key of the catalog."""

    schema: str
    name: str
    child: Place
    parent: Place
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    deferrable: bool
    on_delete: str
    on_update: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of ``rules_of_table``."""
        lists = {name: tuple(row[name]) for name in ("child", "parent", "columns", "referenced")}
        return cls(**{**row, **lists})

    @property
    def deletes_wait(self) -> bool:
        """Whether a parent can be deleted now and inserted later in the transaction: no action can be deferred."""
        return self.deferrable and self.on_delete == _NO_ACTION

    @property
    def deletes_change_children(self) -> bool:
        """Whether deleting a parent deletes or changes its children."""
        return self.on_delete in _CHANGES_CHILDREN

    @property
    def updates_change_children(self) -> bool:
        """Whether another value in a parent changes its children."""
        return self.on_update in _CHANGES_CHILDREN


def parents_first(targets: Iterable[Target]) -> tuple[list[Place], list[Place]]:
    """The targets, each after those that its foreign keys refer to, otherwise in their order; and those in a circle.

    Keys that can be deferred give way where all keys together make a circle.
    """
    order, circle = _sorted(list(targets), lambda key: True)
    if circle:
        order, circle = _sorted(list(targets), lambda key: not key.deferrable)
    return order, circle


def _sorted(targets: Sequence[Target], counts: Callable[[ForeignKey], bool]) -> tuple[list[Place], list[Place]]:
    left = [target.place for target in targets]
    waits = {
        target.place: {
            key.parent
            for key in target.foreign_keys
            if key.child == target.place != key.parent and key.parent in left and counts(key)
        }
        for target in targets
    }
    order: list[Place] = []
    while free := [place for place in left if not waits[place] - set(order)]:
        order.append(free[0])
        left.remove(free[0])
    return order, left


def defer(connection: Connection, targets: Iterable[Target], mode: str = "DEFERRED") -> None:
    """Let the constraints of these targets that can be deferred wait, or compare them now (mode ``IMMEDIATE``)."""
    found = sorted({one for target in targets for one in target.deferrable})
    if found:
        listed = sql.SQL(", ").join(sql.Identifier(*one) for one in found)
        execute_sql(connection, sql.SQL("SET CONSTRAINTS {} {}").format(listed, sql.SQL(mode)))


def refuse_unorderable(connection: Connection, pipeline: Pipeline, targets: Collection[Target]) -> None:
    """Refuse targets that no order of statements fits, at the plan.

    Raises:
        TargetError: two targets refer to each other by keys that cannot be deferred, or a target whose rows are
            replaced has rows that refer to it. The message has the statement that mends it.
    """
    _, circle = parents_first(targets)
    if circle:
        keys = [
            key
            for target in targets
            for key in target.foreign_keys
            if key.child == target.place in circle and key.parent in circle and key.parent != key.child
        ]
        mended = _deferring(connection, [key for key in keys if not key.deferrable])
        raise TargetError(
            f"{pipeline.name}: targets {', '.join(map('.'.join, circle))} refer to each other by foreign keys, so none"
            f" of them can be written first. Run: {mended}",
            f"plan {pipeline.name}",
        )
    replaced = {split_table(sink.table) for sink in pipeline.tables if sink.mode == "replace"}
    places = {target.place for target in targets}
    for target in targets:
        keys = [
            key
            for key in target.foreign_keys_to_it
            if target.place in replaced and key.child in places - replaced and not key.deletes_wait
        ]
        if keys:
            children = ", ".join(sorted({".".join(key.child) for key in keys}))
            raise TargetError(
                f"{pipeline.name}: target {'.'.join(target.place)} has mode 'replace', which deletes its rows and"
                f" inserts others, but rows of {children} refer to it by a foreign key. Declare mode 'upsert', or run:"
                f" {_deferring(connection, keys, without_action=True)}",
                f"plan {pipeline.name}",
            )


def _deferring(connection: Connection, keys: Sequence[ForeignKey], *, without_action: bool = False) -> str:
    """The statements after which these keys can be deferred; an action on deletes cannot, so it may have to go."""
    statements = []
    for key in keys:
        child, name = sql.Identifier(*key.child), sql.Identifier(key.name)
        statement = sql.SQL("ALTER TABLE {} ALTER CONSTRAINT {} DEFERRABLE;").format(child, name)
        if without_action and key.on_delete != _NO_ACTION:
            columns, referenced = (
                sql.SQL(", ").join(map(sql.Identifier, listed)) for listed in (key.columns, key.referenced)
            )
            statement = sql.SQL(
                "ALTER TABLE {child} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} FOREIGN KEY ({columns})"
                " REFERENCES {parent} ({referenced}) DEFERRABLE;"
            ).format(child=child, name=name, columns=columns, parent=sql.Identifier(*key.parent), referenced=referenced)
        statements.append(as_text(connection, statement))
    return " ".join(statements)
