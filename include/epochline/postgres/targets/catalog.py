"""Read a target from PostgreSQL's catalog, and what lets a commit change its rows: rights and publications.

PostgreSQL refuses UPDATE and DELETE of a published table whose replica identity the publication cannot use: there is
none, or a row filter or a list of columns does not fit it. EXPLAIN makes the same check and touches no row, so the
server itself is asked, in the plan already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psycopg2
from psycopg2 import sql

from epochline.declare.names import FOLLOWED, split_table
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.postgres.queries.statements import Connection, change, run, where
from epochline.postgres.targets.columns import TargetColumn, columns_of

Place = tuple[str, str]
"""Schema and name of a table."""

_NO_ACTION = "a"
_CHANGES_CHILDREN = frozenset("cnd")
"""CASCADE, SET NULL and SET DEFAULT, as ``pg_constraint`` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check constraint: its expression, and the columns that it reads."""

    name: str
    expression: str
    columns: frozenset[str]


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
        lists: dict[str, Any] = {name: tuple(row[name]) for name in ("child", "parent", "columns", "referenced")}
        return cls(**{**row, **lists})

    @property
    def has_action(self) -> bool:
        """Whether it acts when a parent is deleted. An action cannot be deferred."""
        return self.on_delete != _NO_ACTION

    @property
    def deletes_wait(self) -> bool:
        """Whether a parent can be deleted now and inserted later in the transaction."""
        return self.deferrable and not self.has_action

    @property
    def deletes_change_children(self) -> bool:
        """Whether deleting a parent deletes or changes its children."""
        return self.on_delete in _CHANGES_CHILDREN

    @property
    def updates_change_children(self) -> bool:
        """Whether another value in a parent changes its children."""
        return self.on_update in _CHANGES_CHILDREN


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target table as the catalog shows it."""

    schema: str
    name: str
    oid: int
    partitioned: bool
    columns: Mapping[str, TargetColumn]
    unique_keys: frozenset[frozenset[str]]
    loose: frozenset[str]
    """Columns in which the table takes texts that differ for equal: by a non-deterministic collation of the column or
    of a unique index, or because they are citext."""
    has_other_rules: bool
    """Rows may be refused for reasons that only a trial shows: foreign keys from or to it, exclusions, partitions,
    triggers, rewrite rules, generated columns, row-level security that applies to this login, indexes that are partial
    or over expressions, unique constraints that are deferrable, or unique indexes that do not compare as ``=`` does."""
    is_changed_by_others: bool
    """Something else than our statements may change its rows, or rows of other targets, in our transaction: triggers,
    rewrite rules, row-level security, foreign keys that cascade to it or from it, volatile functions in defaults or
    checks; or a child table has rows that a query of it returns."""
    rewrites_inserts: bool
    """A rewrite rule takes its INSERTs."""
    sees_rewriting: bool
    """A trigger or rule sees more or other changes if a row is deleted and inserted instead of updated."""
    sees_deletes: bool
    """A trigger or rule sees deleted rows."""
    changes_rows: bool
    """A trigger or rule changes rows before they are written."""
    checks: tuple[Check, ...]
    long_indexes: tuple[tuple[str, ...], ...]
    """For each index without expressions, its columns of variable length: an index entry has a maximum size."""
    exclusive: bool
    """Two rows may exclude each other by more than `unique_keys`: partial indexes, indexes over expressions or on
    single partitions, exclusion constraints, deferrable keys."""
    foreign_keys: tuple[ForeignKey, ...]
    """Foreign keys from and to the table."""
    deferrable: tuple[tuple[str, str], ...]
    """Schema and name of each constraint of the table, or of a foreign key to it, that can be deferred."""

    @property
    def identifier(self) -> sql.Identifier:
        """The qualified name, as a quoted identifier."""
        return sql.Identifier(self.schema, self.name)

    @property
    def foreign_keys_to_it(self) -> tuple[ForeignKey, ...]:
        """The foreign keys of other tables, and of the table itself, that refer to its rows."""
        return tuple(key for key in self.foreign_keys if key.parent == self.place)

    @property
    def place(self) -> Place:
        """Schema and name."""
        return self.schema, self.name


def find_target(connection: Connection, table: str) -> Target | None:
    """Look up a table in the catalog; None if it does not exist. Every path to a target passes here.

    Raises:
        TargetError: it is no table; a foreign or an unlogged table holds rows of it (INV-2); or row-level security may
            hide rows from this login: then no count of it and no comparison with it means anything.
    """
    schema, name = split_table(table)
    relation = run(connection, "find_relation", schema=schema, table=name).one_or_none()
    if relation is None:
        return None
    if relation.relkind not in ("r", "p"):
        raise TargetError(
            f"{table}: is not a table (pg_class.relkind {relation.relkind!r}); a target must be a table. Rename it, or"
            " declare another target.",
            "migrate",
        )
    if relation.unfit is not None:
        why, remedy = "a crash of PostgreSQL empties it", f"run ALTER TABLE {relation.unfit} SET LOGGED"
        if relation.is_foreign:
            why = "PostgreSQL cannot commit its rows together with the ledger"
            remedy = f"detach {relation.unfit}, or let it be a table of this database"
        raise TargetError(
            f"{table}: the {'foreign' if relation.is_foreign else 'unlogged'} table {relation.unfit} holds rows of it,"
            f" and {why}. Nothing was changed. To mend it, {remedy}; or declare another target.",
            "validate",
        )
    rules = dict(run(connection, "rules_of_table", oid=relation.oid, state_triggers=FOLLOWED).one()._asdict())
    hides_rows, login = rules.pop("hides_rows"), rules.pop("login")
    if hides_rows:
        raise TargetError(
            f"{table}: row-level security may hide rows from the login {login}, so that its rows can be neither"
            " counted nor compared. Nothing was changed. Let the login see every row: CREATE POLICY epochline ON"
            f' {table} FOR SELECT TO "{login}" USING (true), without a restrictive policy; or give it BYPASSRLS.',
            "validate",
        )
    rules["unique_keys"] = frozenset(map(frozenset, rules["unique_keys"]))
    columns = columns_of(connection, table)
    citext = {name for name, column in columns.items() if column.plain == "citext"}
    rules["loose"] = frozenset(citext.union(rules["loose"]))
    rules["checks"] = tuple(Check(**{**check, "columns": frozenset(check["columns"])}) for check in rules["checks"])
    rules["long_indexes"] = tuple(tuple(sorted(columns)) for columns in rules["long_indexes"])
    rules["foreign_keys"] = tuple(map(ForeignKey.of, rules["foreign_keys"]))
    rules["deferrable"] = tuple(map(tuple, rules["deferrable"]))
    return Target(
        schema=schema,
        name=name,
        oid=relation.oid,
        partitioned=relation.relkind == "p",
        columns=columns,
        **rules,
    )


_RIGHTS = {
    "append": ("INSERT",),
    "replace": ("INSERT", "DELETE"),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "add": ("SELECT", "INSERT", "UPDATE"),
}
_CHANGES = {"upsert": ("UPDATE", "DELETE"), "add": ("UPDATE",), "replace": ("DELETE",)}
"""What the commits of each mode do to rows that are there."""

_EXPLAINED = {
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = {column}",
    "DELETE": "EXPLAIN DELETE FROM {table}",
}
_BY_PUBLICATION = ("55000", "42P10")
"""SQLSTATEs of the refusal: no replica identity; a row filter or a list of columns that does not fit."""


def missing_rights(
    connection: Connection, sink: PostgresTable, *, columns: Sequence[str], deletes: bool = False
) -> list[str]:
    """The GRANTs that this login lacks to fill columns of a target, with their sequences; usually empty.

    If the rows to apply contain tombstones, it ``deletes`` as well. A login may have the right to some columns alone.
    """
    # Before the first plan, the table is searched for rows of another pipeline; and every seal searches for repeats.
    reads = ["SELECT"] if (sink.carried_lineage or sink.key) and "SELECT" not in _RIGHTS[sink.mode] else []
    wanted = [*reads, *_RIGHTS[sink.mode], *["DELETE"] * deletes]
    updated = [name for name in (sink.measures or columns) if name not in sink.key]
    values = {"privileges": wanted, "inserted": list(columns), "updated": updated}
    return list(run(connection, "missing_rights", **where(sink.table), **values).scalars())


def refused_by_publication(
    connection: Connection, sink: PostgresTable, target: Target, *, deletes: bool = False
) -> str | None:
    """Why a publication would make changes of a target fail, with what mends it; None if they would pass.

    The changes are those that commits of the sink, and the end of a publication of its outbox, make to rows that are
    there, and deletes if something else deletes rows.
    """
    changes = ("DELETE",) if isinstance(sink, Outbox) else _CHANGES.get(sink.mode, ())
    writable = [name for name, column in target.columns.items() if column.writable]
    if not (changes or deletes) or not writable or not run(connection, "publishes_changes").scalar_one():
        return None
    # A column outside the key, if there is one.
    column = min(writable, key=lambda name: name in sink.key)
    for kind in dict.fromkeys([*changes, *["DELETE"] * deletes]):
        error = _refusal(connection, _EXPLAINED[kind], target, column)
        if error is not None:
            lacking = run(connection, "tables_without_identity", **where(sink.table)).scalars()
            tables = lacking or [".".join(target.place)]
            alter = "; ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in tables)
            parts = [error.diag.message_primary, error.diag.message_detail]
            message = ". ".join(part.rstrip(".") for part in parts if part)
            return f"a publication of this database lets nobody {kind} its rows: {message}. Run {alter}; or change it."
    return None


def _refusal(connection: Connection, statement: str, target: Target, column: str) -> psycopg2.Error | None:
    change(connection, "SAVEPOINT published")
    refusal = None
    try:
        change(connection, statement, table=target.identifier, column=column)
    except psycopg2.Error as error:
        if error.pgcode is None:
            raise
        # Any other refusal, as of a missing right, is told by a check of its own.
        refusal = error if error.pgcode in _BY_PUBLICATION else None
        change(connection, "ROLLBACK TO SAVEPOINT published")
    change(connection, "RELEASE SAVEPOINT published")
    return refusal
