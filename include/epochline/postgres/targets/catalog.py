"""Read a target from PostgreSQL's catalog, and compare it with the declaration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.columns import INTEGERS, STAGED_LINEAGE, STAGED_PLACE, is_reserved
from epochline.declare.names import FOLLOWED, OWNER, deleted_keys_table, order_column, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable, order_columns
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.postgres.queries.statements import run
from epochline.postgres.targets.foreign_keys import ForeignKey
from epochline.postgres.targets.publications import changes_of, refused_by_publication
from epochline.postgres.targets.rights import missing_rights
from epochline.postgres.targets.shapes import ColumnShape, table_shapes

_POSITION = frozenset({"_topic", "_partition", "_offset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """One column of a target: its type as ``format_type`` spells it, and whether it can be left out."""

    kind: str
    shape: ColumnShape
    required: bool
    writable: bool
    not_null: bool
    has_default: bool = False
    generated: bool = False
    """PostgreSQL computes it from other columns of the row."""


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
    oid: int = 0
    partitioned: bool = False
    is_changed_by_others: bool = False
    """Something else than our statements may change its rows, or rows of other targets, in our transaction: triggers,
    rewrite rules, row-level security, foreign keys that cascade to it or from it, volatile functions in defaults or
    checks; or a child table has rows that a query of it returns."""
    checks: tuple[Check, ...] = ()
    long_indexes: tuple[tuple[str, ...], ...] = ()
    """For each index without expressions, its columns of variable length: an index entry has a maximum size."""
    exclusive: bool = False
    """Two rows may exclude each other by more than `unique_keys`: partial indexes, indexes over expressions or on
    single partitions, exclusion constraints, deferrable keys."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    """Foreign keys from and to the table."""
    deferrable: tuple[tuple[str, str], ...] = ()
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
    def place(self) -> tuple[str, str]:
        """Schema and name."""
        return self.schema, self.name


def find_target(connection: Connection, table: str) -> Target | None:
    """Look up a table in the catalog; None if it does not exist. Every path to a target passes here.

    Raises:
        TargetError: it is no table; a foreign or an unlogged table holds rows of it (INV-2); or row-level security may
            hide rows from this login: then no count of it and no comparison with it means anything.
    """
    schema, name = split_table(table)
    found = run(connection, "find_relation", schema=schema, table=name).one_or_none()
    if found is None:
        return None
    if found.relkind not in ("r", "p"):
        raise TargetError(
            f"{table}: is not a table (pg_class.relkind {found.relkind!r}); a target must be a table. Rename it, or"
            " declare another target.",
            "migrate",
        )
    if found.unfit is not None:
        why, remedy = "a crash of PostgreSQL empties it", f"run ALTER TABLE {found.unfit} SET LOGGED"
        if found.is_foreign:
            why = "PostgreSQL cannot commit its rows together with the ledger"
            remedy = f"detach {found.unfit}, or let it be a table of this database"
        raise TargetError(
            f"{table}: the {'foreign' if found.is_foreign else 'unlogged'} table {found.unfit} holds rows of it, and"
            f" {why}. Nothing was changed. To mend it, {remedy}; or declare another target.",
            "validate",
        )
    columns = run(connection, "columns_of_table", oid=found.oid)
    shapes = table_shapes(connection, table)
    keys = run(connection, "unique_keys_of_table", oid=found.oid).scalars()
    rules = run(connection, "rules_of_table", oid=found.oid, state_triggers=FOLLOWED).one()
    if rules.hides_rows:
        raise TargetError(
            f"{table}: row-level security may hide rows from the login {rules.login}, so that its rows can be neither"
            " counted nor compared. Nothing was changed. Let the login see every row: CREATE POLICY epochline ON"
            f' {table} FOR SELECT TO "{rules.login}" USING (true), without a restrictive policy; or give it BYPASSRLS.',
            "validate",
        )
    return Target(
        schema=schema,
        name=name,
        oid=found.oid,
        partitioned=found.relkind == "p",
        is_changed_by_others=bool(rules.is_changed_by_others),
        columns={
            column.name: TargetColumn(
                kind=column.kind,
                shape=shapes[column.name],
                required=column.not_null and not column.has_default,
                has_default=column.has_default,
                writable=column.writable,
                not_null=column.not_null,
                generated=column.generated,
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
        exclusive=rules.exclusive,
        foreign_keys=tuple(map(ForeignKey.of, rules.foreign_keys)),
        deferrable=tuple((schema, name) for schema, name in rules.deferrable),
    )


def filled_columns(
    connection: Connection, pipeline: Pipeline, sink: PostgresTable, target: Target | None
) -> dict[str, str]:
    """Check a target against its declaration; return the columns that the sink fills, in order, with their types.

    Args:
        connection: of the ledger's login.
        pipeline: the declaration.
        sink: whose target it is.
        target: as the catalog shows it; None if it does not exist.

    Raises:
        TargetError: the table is missing or does not fit; the message says how to correct it.
    """
    subject = f"{pipeline.name}: target {sink.table}"
    if target is None:
        if sink.columns is None:
            raise TargetError(f"{subject} does not exist. Create it.", f"plan {pipeline.name}")
        raise TargetError(f"{subject} does not exist. The command makes it.", "migrate")
    try:
        filled = _declared(sink, target) if sink.columns is not None else _by_catalog(pipeline, sink, target)
        missing = missing_rights(connection, sink, columns=[*filled, *sink.added_columns])
        if missing:
            raise _UnfitError(f": the ledger's login may not write to it. Missing: {'; '.join(missing)}.")
        _check_required(sink, target, filled)
        _check_lineage(sink, target)
        if sink.key:
            _check_key(sink, target, filled)
        published = refused_by_publication(connection, sink, changed_columns(sink, target), changes_of(sink))
        if published is not None:
            raise _UnfitError(f": {published}")
    except _UnfitTypeError as unfit:
        # The plan itself would say the same again.
        raise TargetError(f"{subject}{unfit}", f"run {pipeline.name}") from unfit
    except _UnfitError as unfit:
        raise TargetError(f"{subject}{unfit}", f"plan {pipeline.name}") from unfit
    if remembers_deleted(sink) and find_target(connection, _side_table(pipeline, sink)) is None:
        raise TargetError(f"{subject}: its table of deleted keys is missing. The command makes it.", "migrate")
    return filled


def changed_columns(sink: PostgresTable, target: Target) -> list[str]:
    """Columns of a target that an UPDATE of the sink may set, those outside its key first."""
    writable = [name for name, column in target.columns.items() if column.writable]
    return sorted(writable, key=lambda name: name in sink.key)


class _UnfitError(Exception):
    """What is wrong with a target, as the end of a sentence that begins with its name."""


class _UnfitTypeError(_UnfitError):
    """A column has a type that cannot be filled; the sentence ends with the statement that alters it."""


def check_existing(connection: Connection, pipeline: Pipeline, sink: PostgresTable, target: Target) -> None:
    """Check an existing append target whose columns are declared, before anything else is made for the pipeline.

    Raises:
        TargetError: the table is not one that `epochline migrate` could have made from the declaration.
    """
    if sink.mode != "append" or sink.columns is None:
        return
    try:
        filled = _declared(sink, target)
        _check_required(sink, target, filled)
        _check_lineage(sink, target)
    except _UnfitError as unfit:
        raise TargetError(f"{pipeline.name}: target {sink.table}{unfit}", "migrate") from unfit
    check_provenance(connection, pipeline, sink)


def check_provenance(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse an append target with a foreign owner or key, unless it is declared as existing: without columns.

    Raises:
        TargetError: names owner or key, and what to declare.
    """
    if sink.mode != "append" or sink.columns is None:
        return
    subject = f"{pipeline.name}: target {sink.table}"
    schema, table = split_table(sink.table)
    found = run(connection, "provenance_of_table", schema=schema, table=table).one()
    remedy = (
        "Declare another table; or leave out `columns`, which declares a table that exists, with keys and an owner of"
        " its own"
    )
    if not found.is_ours:
        raise TargetError(
            f"{subject} belongs to the role {found.owner}, and Epochline makes no table as this role: another program's"
            f" rows may be in it. Nothing was changed. {remedy}; or, if the table is this pipeline's, run ALTER TABLE"
            f" {sink.table} OWNER TO {OWNER}.",
            "migrate",
        )
    filled, own = {*sink.columns, *sink.added_columns}, set(sink.key)
    unknown = [
        f"{key['name']} ({', '.join(key['columns']) or 'an expression'})"
        for key in found.keys
        # A column that the database fills makes rows differ, and so does the record's position.
        if key["covers_more"]
        or (set(key["columns"]) <= filled and not set(key["columns"]) >= _POSITION and set(key["columns"]) != own)
    ]
    if unknown:
        raise TargetError(
            f"{subject} has a unique key that the declaration does not know: {'; '.join(unknown)}. In mode 'append' the"
            f" second record of a key would be refused. Nothing was changed. {remedy}; or declare this key,"
            " in mode 'upsert' or with repeats='skip'.",
            "migrate",
        )


def remembers_deleted(sink: PostgresTable) -> bool:
    """Whether a table keeps the deleted keys, so that an older row that arrives later does not bring one back."""
    return sink.mode == "upsert" and bool(order_of(sink))


def _side_table(pipeline: Pipeline, sink: PostgresTable) -> str:
    return f"epochline.{deleted_keys_table(pipeline.name, sink.table)}"


def _declared(sink: PostgresTable, target: Target) -> dict[str, str]:
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
        raise _UnfitError(
            f" is not as declared: {'; '.join(wrong)}. Epochline alters no column: alter the table or the declaration."
        )
    return dict(sink.columns or {})


def _by_catalog(pipeline: Pipeline, sink: PostgresTable, target: Target) -> dict[str, str]:
    own_rows = sink.select is not None or pipeline.is_transformed
    _refuse_generated([] if own_rows else pipeline.parsed_columns, target)
    filled = {}
    for name, column in target.columns.items():
        if is_reserved(name) or name == sink.insert_time or not column.writable:
            continue
        if sink.mode == "add" and name not in (*sink.key, *sink.measures):
            continue
        if name in pipeline.parsed_columns if not own_rows else column.required or not column.not_null:
            if column.shape.unfit is not None:
                raise _UnfitTypeError(
                    f": column {name} is {column.kind}, {column.shape.unfit}. Its values cannot be checked. Give the"
                    f" column another type: ALTER TABLE {sink.table} ALTER COLUMN {name} TYPE jsonb USING"
                    f" to_jsonb({name})."
                )
            filled[name] = column.kind
    if not filled:
        raise _UnfitError(
            f" has no column that the record has. The record has {', '.join(pipeline.parsed_columns)}; the"
            f" table has {', '.join(target.columns)}."
        )
    own = sink.carried_lineage if sink.key_is_place else {}
    missing = [name for name in (*sink.key, *sink.measures) if name not in {**filled, **own}]
    if missing:
        raise _UnfitError(f" has no column {', '.join(missing)} to fill, which the declaration names.")
    return filled


def _refuse_generated(record: Iterable[str], target: Target) -> None:
    """Refuse a column of the record that the table generates: its own value would be stored instead (SEC-5, INV-9)."""
    refused = [name for name in record if name in target.columns and not target.columns[name].writable]
    if refused:
        names = ", ".join(refused)
        raise _UnfitError(
            f": the record has {names}, and the table generates {names} itself, so that it would store other values."
            f" Run ALTER TABLE {target.schema}.{target.name} ALTER COLUMN {refused[0]} SET GENERATED BY DEFAULT if it"
            " is an identity column, or leave the column out of parse or by a `select` of the sink."
        )


def _check_required(sink: PostgresTable, target: Target, filled: Mapping[str, str]) -> None:
    carried = set(filled) | set(sink.added_columns) | {order_column(name) for name in sink.order_by}
    left_out = [name for name, column in target.columns.items() if column.required and name not in carried]
    if left_out:
        raise _UnfitError(
            f": {', '.join(left_out)} is NOT NULL without a default, and nothing fills it. Give it a default,"
            " drop NOT NULL, or fill it."
        )


def _check_lineage(sink: PostgresTable, target: Target) -> None:
    wrong = [
        f"{name} {kind}"
        for name, kind in sink.added_columns.items()
        if name not in target.columns or target.columns[name].kind != kind or not target.columns[name].writable
    ]
    if wrong:
        raise _UnfitError(
            f" lacks {', '.join(wrong)}, which tell a row's record, epoch and time. Add these columns, or"
            " declare the sink with lineage=False (an audit can then compare counts only)."
        )


def _check_key(sink: PostgresTable, target: Target, filled: Mapping[str, str]) -> None:
    if frozenset(sink.key) not in target.unique_keys:
        raise _UnfitError(
            f": mode {sink.mode!r} needs a unique index or primary key on exactly ({', '.join(sink.key)}). Create it."
        )
    nullable = [name for name in sink.key if not target.columns[name].not_null]
    if nullable:
        raise _UnfitError(f": key column {', '.join(nullable)} may be NULL. Make it NOT NULL.")
    inexact = [f"{name} {filled[name]}" for name in sink.measures if not _adds_exactly(target.columns[name])]
    if inexact:
        raise _UnfitError(f": measure {', '.join(inexact)}: only integer and numeric columns add exactly.")


def _adds_exactly(column: TargetColumn) -> bool:
    shape = column.shape
    return not shape.is_array and shape.plain in INTEGERS | {"numeric"} and shape.staged == shape.base


def table_definition(pipeline: Pipeline, sink: PostgresTable) -> dict[str, str]:
    """Columns of the table that ``epochline migrate`` creates for a sink, with their types."""
    orders = {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()}
    place = STAGED_PLACE if isinstance(sink, Outbox) else {}
    return {**(sink.columns or {}), **sink.added_columns, **orders, **place}


def order_of(sink: PostgresTable) -> list[str]:
    """Columns that order the rows of one key (the highest row wins): the declared ones, then the record's position."""
    position = [] if sink.aggregated else [*STAGED_LINEAGE]
    return [*(order_column(name) for name in sink.order_by), *position]
