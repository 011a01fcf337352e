"""Read a target from PostgreSQL's catalog, and compare it with the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import INTEGERS, STAGED_LINEAGE, STAGED_PLACE, parse_type
from epochline.declare.names import FOLLOWED, deleted_keys_table, order_column, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable, order_columns
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.rights import missing_rights


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """One column of a target: its type as ``format_type`` spells it, and whether it can be left out."""

    kind: str
    required: bool
    writable: bool
    not_null: bool
    is_enum: bool
    has_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check constraint: its expression, and the columns that it reads."""

    name: str
    expression: str
    columns: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target table as the catalog shows it."""

    schema: str
    name: str
    columns: Mapping[str, TargetColumn]
    unique_keys: frozenset[frozenset[str]]
    has_other_rules: bool
    """Rows may be refused for reasons that only a trial shows: foreign keys from or to it, exclusions, partitions,
    triggers, rewrite rules, generated columns, row-level security that applies to this login, indexes that are partial
    or over expressions, or unique constraints that are deferrable."""
    checks: tuple[Check, ...] = ()
    long_indexes: tuple[tuple[str, ...], ...] = ()
    """For each index without expressions, its columns of variable length: an index entry has a maximum size."""

    @property
    def identifier(self) -> sql.Identifier:
        """The qualified name, as a quoted identifier."""
        return sql.Identifier(self.schema, self.name)


def find_target(connection: Connection, table: str) -> Target | None:
    """Look up a table in the catalog; None if it does not exist."""
    schema, name = split_table(table)
    found = run(connection, "find_relation", schema=schema, table=name).one_or_none()
    if found is None:
        return None
    if found.relkind not in ("r", "p"):
        raise TargetError(f"{table}: is not a table (pg_class.relkind {found.relkind!r}); a target must be a table.")
    columns = run(connection, "columns_of_table", oid=found.oid)
    keys = run(connection, "unique_keys_of_table", oid=found.oid).scalars()
    rules = run(connection, "rules_of_table", oid=found.oid, state_triggers=FOLLOWED).one()
    return Target(
        schema=schema,
        name=name,
        columns={
            column.name: TargetColumn(
                kind=column.kind,
                required=column.not_null and not column.has_default,
                has_default=column.has_default,
                writable=column.writable,
                not_null=column.not_null,
                is_enum=column.is_enum,
            )
            for column in columns
        },
        unique_keys=frozenset(map(frozenset, keys)),
        has_other_rules=bool(rules.other_rules),
        checks=tuple(
            Check(name=one["name"], expression=one["expression"], columns=frozenset(one["columns"]))
            for one in rules.checks
        ),
        long_indexes=tuple(tuple(sorted(one)) for one in rules.long_indexes),
    )


def filled_columns(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> dict[str, str]:
    """Check a target against its declaration; return the columns that the sink fills, in order, with their types.

    Raises:
        TargetError: the table is missing or does not fit; the message says how to correct it.
    """
    target = find_target(connection, sink.table)
    subject = f"{pipeline.name}: target {sink.table}"
    if target is None:
        hint = "Create it" if sink.columns is None else "Run `epochline migrate`, which makes it"
        raise TargetError(f"{subject} does not exist. {hint}, then run the pipeline again.")
    filled = (
        _declared(subject, sink, target) if sink.columns is not None else _by_catalog(subject, pipeline, sink, target)
    )
    missing = missing_rights(connection, sink)
    if missing:
        raise TargetError(f"{subject}: the ledger's login may not write to it. Missing: {'; '.join(missing)}.")
    _check_required(subject, sink, target, filled)
    _check_lineage(subject, sink, target)
    if sink.key:
        _check_key(subject, sink, target, filled)
    if remembers_deleted(sink) and find_target(connection, _side_table(pipeline, sink)) is None:
        raise TargetError(f"{subject}: its table of deleted keys is missing. Run `epochline migrate`, which makes it.")
    return filled


def remembers_deleted(sink: PostgresTable) -> bool:
    """Whether a table keeps the deleted keys, so that an older row that arrives later does not bring one back."""
    return sink.mode == "upsert" and bool(order_of(sink))


def _side_table(pipeline: Pipeline, sink: PostgresTable) -> str:
    return f"epochline.{deleted_keys_table(pipeline.name, sink.table)}"


def _declared(subject: str, sink: PostgresTable, target: Target) -> dict[str, str]:
    wrong = []
    for name, kind in (sink.columns or {}).items():
        column = target.columns.get(name)
        if column is None:
            wrong.append(f"{name} {kind} is missing")
        elif column.kind != kind:
            wrong.append(f"{name} is {column.kind}, declared as {kind}")
        elif not column.writable:
            wrong.append(f"{name} is generated")
    if wrong:
        raise TargetError(
            f"{subject} is not as declared: {'; '.join(wrong)}. Epochline alters no column: alter the table or the"
            " declaration."
        )
    return dict(sink.columns or {})


def _by_catalog(subject: str, pipeline: Pipeline, sink: PostgresTable, target: Target) -> dict[str, str]:
    own_rows = sink.select is not None or pipeline.is_transformed
    filled = {}
    for name, column in target.columns.items():
        if name.startswith("_") or not column.writable:
            continue
        if sink.mode == "add" and name not in (*sink.key, *sink.measures):
            continue
        if name in pipeline.parsed_columns if not own_rows else column.required or not column.not_null:
            try:
                parse_type(column.kind, enums=frozenset({column.kind} if column.is_enum else ()))
            except ValueError as error:
                raise TargetError(f"{subject}: column {name}: {error}.") from error
            filled[name] = column.kind
    if not filled:
        raise TargetError(
            f"{subject} has no column that the record has. The record has {', '.join(pipeline.parsed_columns)}; the"
            f" table has {', '.join(target.columns)}."
        )
    missing = [name for name in (*sink.key, *sink.measures) if name not in filled]
    if missing:
        raise TargetError(f"{subject} has no column {', '.join(missing)} to fill, which the declaration names.")
    return filled


def _check_required(subject: str, sink: PostgresTable, target: Target, filled: Mapping[str, str]) -> None:
    carried = set(filled) | set(sink.carried_lineage) | {order_column(name) for name in sink.order_by}
    left_out = [name for name, column in target.columns.items() if column.required and name not in carried]
    if left_out:
        raise TargetError(
            f"{subject}: {', '.join(left_out)} is NOT NULL without a default, and nothing fills it. Give it a default,"
            " drop NOT NULL, or fill it."
        )


def _check_lineage(subject: str, sink: PostgresTable, target: Target) -> None:
    wrong = [
        f"{name} {kind}"
        for name, kind in sink.carried_lineage.items()
        if name not in target.columns or target.columns[name].kind != kind
    ]
    if wrong:
        raise TargetError(
            f"{subject} lacks {', '.join(wrong)}, which tie a row to its record and epoch. Add these columns, or"
            " declare the sink with lineage=False (an audit can then compare counts only)."
        )


def _check_key(subject: str, sink: PostgresTable, target: Target, filled: Mapping[str, str]) -> None:
    if frozenset(sink.key) not in target.unique_keys:
        raise TargetError(
            f"{subject}: mode {sink.mode!r} needs a unique index or primary key on exactly ({', '.join(sink.key)})."
            " Create it."
        )
    nullable = [name for name in sink.key if not target.columns[name].not_null]
    if nullable:
        raise TargetError(f"{subject}: key column {', '.join(nullable)} may be NULL. Make it NOT NULL.")
    inexact = [f"{name} {filled[name]}" for name in sink.measures if not _adds_exactly(target.columns[name])]
    if inexact:
        raise TargetError(f"{subject}: measure {', '.join(inexact)}: only integer and numeric columns add exactly.")


def _adds_exactly(column: TargetColumn) -> bool:
    return not column.is_enum and parse_type(column.kind).name in INTEGERS | {"numeric"}


def table_definition(pipeline: Pipeline, sink: PostgresTable) -> dict[str, str]:
    """Columns of the table that ``epochline migrate`` creates for a sink, with their types."""
    orders = {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()}
    place = STAGED_PLACE if isinstance(sink, Outbox) else {}
    return {**(sink.columns or {}), **sink.carried_lineage, **orders, **place}


def order_of(sink: PostgresTable) -> list[str]:
    """Columns that order the rows of one key (the highest row wins): the declared ones, then the record's position."""
    position = [] if sink.aggregated else [*STAGED_LINEAGE]
    return [*(order_column(name) for name in sink.order_by), *position]
