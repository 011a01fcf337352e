"""Foreign keys of targets: the order in which an epoch writes tables, and what deletes and updates would do to others.

Rows are written parents first and taken away children first. What a constraint that can be deferred says is compared at
the end, so it asks for no order (ADR 0041).
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from psycopg2 import errors, sql

from epochline.declare.names import split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.postgres.queries.statements import Connection, as_text, change, compose, joined, names, query
from epochline.postgres.targets.catalog import ForeignKey, Place, Target, find_target

DELETES = {"c": "deletes those", "n": "sets those to NULL", "d": "sets those to their default"}
"""What a foreign key does to the rows that refer to a row that goes (pg_constraint.confdeltype and confupdtype)."""
UPDATES = {action: effect for action, effect in DELETES.items() if action != "c"}
"""The same for a value that changes. ON UPDATE CASCADE is no harm: what refers follows the value."""


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


def referring_first(connection: Connection, sinks: Sequence[PostgresTable]) -> tuple[list[PostgresTable], list[Target]]:
    """The sinks, each before those that its foreign keys refer to, without missing tables; and their targets."""
    by_place = {split_table(sink.table): sink for sink in sinks}
    targets = [target for sink in sinks if (target := find_target(connection, sink.table)) is not None]
    order, circle = parents_first(targets)
    return [by_place[place] for place in [*reversed(circle), *reversed(order)]], targets


def defer(connection: Connection, targets: Iterable[Target], mode: str = "DEFERRED") -> None:
    """Let the constraints of these targets that can be deferred wait, or compare them now (mode ``IMMEDIATE``)."""
    constraints = sorted({constraint for target in targets for constraint in target.deferrable})
    if constraints:
        listed = joined(sql.Identifier(*constraint) for constraint in constraints)
        change(connection, "SET CONSTRAINTS {listed} {mode}", listed=listed, mode=sql.SQL(mode))


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
        statement = "ALTER TABLE {child} ALTER CONSTRAINT {name} DEFERRABLE;"
        if without_action and key.has_action:
            statement = (
                "ALTER TABLE {child} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} FOREIGN KEY ({columns})"
                " REFERENCES {parent} ({referenced}) DEFERRABLE;"
            )
        composed = compose(
            statement,
            child=sql.Identifier(*key.child), name=key.name, columns=names(key.columns),
            parent=sql.Identifier(*key.parent), referenced=names(key.referenced),
        )  # fmt: skip
        statements.append(as_text(connection, composed))
    return " ".join(statements)


def harm_of_delete(
    connection: Connection,
    target: Target,
    rows: sql.Composable,
    leaving: sql.Composable,
    emptied: Collection[Place] = (),
) -> str | None:
    """Why the rows of a query may not be deleted: a foreign key would delete or change rows that refer to them.

    ``leaving`` is the condition that a row ``r`` of the target itself goes, too, or refers to another row afterwards.
    Every row of the ``emptied`` tables goes in the same transaction.
    """
    for key in target.foreign_keys_to_it:
        if key.deletes_change_children and key.child not in emptied:
            stays = compose("NOT ({leaving})", leaving=leaving) if key.child == key.parent else sql.SQL("true")
            if obstacle := referring(connection, key, rows, stays):
                return f"{obstacle}, and its foreign key {key.name} {DELETES[key.on_delete]}"
    return None


def harm_of_update(connection: Connection, target: Target, changed: sql.Composable) -> str | None:
    """Why rows may not change, which a query has as they are: a key would set what refers to NULL or a default."""
    for key in target.foreign_keys_to_it:
        if key.on_update in UPDATES and (obstacle := referring(connection, key, changed, sql.SQL("true"))):
            return f"{obstacle}, and its foreign key {key.name} {UPDATES[key.on_update]} when a value changes"
    return None


def referred_columns(target: Target) -> frozenset[str]:
    """The columns of a target to which foreign keys refer."""
    return frozenset(name for key in target.foreign_keys_to_it for name in key.referenced)


def referring(connection: Connection, key: ForeignKey, rows: sql.Composable, stays: sql.Composable) -> str | None:
    """Say that a table has rows that refer to these, or that this login cannot know it; None if it has none."""
    table = ".".join(key.child)
    change(connection, "SAVEPOINT referring")
    try:
        # PostgreSQL then raises an error in place of hiding rows.
        change(connection, "SET LOCAL row_security TO off")
        refer = query(
            connection,
            "SELECT 1 FROM {table} r WHERE EXISTS (SELECT FROM ({rows}) x WHERE ({referred}) = ({columns})) AND {stays}"
            " LIMIT 1",
            table=sql.Identifier(*key.child), rows=rows, referred=names(key.referenced, "x"),
            columns=names(key.columns, "r"), stays=stays,
        )  # fmt: skip
    except errors.InsufficientPrivilege:
        return f"{table} may have rows that refer to them, which this login may not read"
    finally:
        change(connection, "ROLLBACK TO SAVEPOINT referring; RELEASE SAVEPOINT referring")
    return f"{table} has rows that refer to them" if refer else None
