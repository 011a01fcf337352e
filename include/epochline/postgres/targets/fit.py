"""Compare a target with its declaration: what the plan refuses, and for its author, what goes nowhere."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from epochline.declare.columns import STAGED_PLACE, is_reserved
from epochline.declare.names import deleted_keys_table, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable, order_columns
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.ports import Fit
from epochline.postgres.queries.statements import Connection
from epochline.postgres.targets.application import remembers_deleted
from epochline.postgres.targets.catalog import Target, find_target, missing_rights, refused_by_publication
from epochline.postgres.targets.claims import check_provenance, refuse_lost
from epochline.postgres.targets.foreign_keys import refuse_unorderable


def filled_columns(
    connection: Connection, pipeline: Pipeline, sink: PostgresTable, target: Target | None
) -> dict[str, str]:
    """Check a target against its declaration; return the columns that the sink fills, in order, with their types.

    Raises:
        TargetError: the table is missing or does not fit; the message says how to correct it.
    """
    subject = f"{pipeline.name}: target {sink.table}"
    if target is None:
        if sink.columns is None:
            raise TargetError(f"{subject} does not exist. Create it.", f"plan {pipeline.name}")
        raise TargetError(f"{subject} does not exist. The command makes it.", "migrate")
    with _refusing(subject, f"plan {pipeline.name}"):
        filled = _declared(sink, target) if sink.columns is not None else _by_catalog(pipeline, sink, target)
        missing = missing_rights(connection, sink, columns=[*filled, *sink.added_columns])
        if missing:
            raise _UnfitError(f": the ledger's login may not write to it. Missing: {'; '.join(missing)}.")
        _check_required(sink, target, filled)
        _check_lineage(sink, target)
        if sink.key:
            _check_key(sink, target, filled)
        _check_order(pipeline, sink, target)
        published = refused_by_publication(connection, sink, target)
        if published is not None:
            raise _UnfitError(f": {published}")
    if remembers_deleted(sink):
        name = f"epochline.{deleted_keys_table(pipeline.name, sink.table)}"
        side = find_target(connection, name)
        if side is None:
            raise TargetError(f"{subject}: its table of deleted keys is missing. The command makes it.", "migrate")
        with _refusing(subject, f"plan {pipeline.name}"):
            _check_deleted_keys(pipeline, sink, target, name, side)
    return filled


class _UnfitError(Exception):
    """What is wrong with a target, as the end of a sentence that begins with its name."""


@contextmanager
def _refusing(subject: str, command: str) -> Iterator[None]:
    try:
        yield
    except _UnfitError as unfit:
        raise TargetError(f"{subject}{unfit}", command) from unfit


def check_existing(connection: Connection, pipeline: Pipeline, sink: PostgresTable, target: Target) -> None:
    """Refuse an append target whose columns are declared and that `migrate` could not have made from them."""
    if sink.mode != "append" or sink.columns is None:
        return
    with _refusing(f"{pipeline.name}: target {sink.table}", "migrate"):
        _check_required(sink, target, _declared(sink, target))
        _check_lineage(sink, target)
    check_provenance(connection, pipeline, sink)


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
            if column.unfit is not None:
                # The plan itself would say the same again.
                raise TargetError(
                    f"{pipeline.name}: target {sink.table}: column {name} is {column.kind}, {column.unfit}. Its values"
                    f" cannot be checked. Give the column another type: ALTER TABLE {sink.table} ALTER COLUMN {name}"
                    f" TYPE jsonb USING to_jsonb({name}).",
                    f"run {pipeline.name}",
                )
            filled[name] = column.kind
    if not filled:
        raise _UnfitError(
            f" has no column that the record has. The record has {', '.join(pipeline.parsed_columns)}; the"
            f" table has {', '.join(target.columns)}."
        )
    lineage = sink.carried_lineage if sink.key_is_place else {}
    missing = [name for name in (*sink.key, *sink.measures) if name not in {**filled, **lineage}]
    if missing:
        raise _UnfitError(f" has no column {', '.join(missing)} to fill, which the declaration names.")
    return filled


def _refuse_generated(record: Iterable[str], target: Target) -> None:
    """Refuse a column of the record that the table generates: its own value would be stored instead (INV-9)."""
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
    loose = [name for name in sink.key if name in target.loose]
    if loose:
        raise _UnfitError(
            f": key column {', '.join(loose)} takes texts that differ for equal, by a non-deterministic collation or as"
            " citext. Records of two keys would share a row, and the epochs would decide which spelling it has. Give"
            " the column and its unique index a deterministic collation, and let parse write each key in one way."
        )
    inexact = [f"{name} {filled[name]}" for name in sink.measures if not target.columns[name].adds_exactly]
    if inexact:
        raise _UnfitError(f": measure {', '.join(inexact)}: only integer and numeric columns add exactly.")


def _check_order(pipeline: Pipeline, sink: PostgresTable, target: Target) -> None:
    """Refuse a column that keeps the order in another type: older records would replace newer ones of their key."""
    if sink.mode != "upsert":
        return
    wrong = _otherwise(target, {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()})
    if wrong:
        raise _UnfitError(
            f": {wrong}. Values that are rounded or compared otherwise would let an older record replace a newer one."
            f" {_retyped(sink.table, wrong)}."
        )


def _check_deleted_keys(pipeline: Pipeline, sink: PostgresTable, target: Target, name: str, side: Target) -> None:
    """Refuse a table of deleted keys whose types the target has outgrown: it would remember other keys and orders."""
    kinds = {key: target.columns[key].kind for key in sink.key}
    kinds |= {order: str(kind) for order, kind in order_columns(sink, pipeline.parsed_columns).items()}
    wrong = _otherwise(side, kinds)
    if wrong:
        raise _UnfitError(
            f": its table of deleted keys would remember other values: {wrong}. Records of keys that nobody deleted"
            f" would count as deleted. {_retyped(name, wrong)}."
        )


class _Wrong(dict[str, tuple[str, str]]):
    """By column, its type, and the type of its values."""

    def __str__(self) -> str:
        return ", ".join(f"{name} is {kind}, and its values are {values}" for name, (kind, values) in self.items())


def _otherwise(table: Target, kinds: Mapping[str, str]) -> _Wrong:
    """The columns of a table that would round values of these types, or compare them otherwise."""
    there = {name: table.columns[name] for name in kinds if name in table.columns}
    return _Wrong({name: (column.kind, kinds[name]) for name, column in there.items() if not column.keeps(kinds[name])})


def _retyped(table: str, wrong: _Wrong) -> str:
    changes = [f"ALTER COLUMN {name} TYPE {kind} USING {name}::{kind}" for name, (_, kind) in wrong.items()]
    return f"Run ALTER TABLE {table} {', '.join(changes)}"


def table_definition(pipeline: Pipeline, sink: PostgresTable) -> dict[str, str]:
    """Columns of the table that ``epochline migrate`` creates for a sink, with their types."""
    orders = {name: str(kind) for name, kind in order_columns(sink, pipeline.parsed_columns).items()}
    place = STAGED_PLACE if isinstance(sink, Outbox) else {}
    return {**(sink.columns or {}), **sink.added_columns, **orders, **place}


def compare(connection: Connection, pipeline: Pipeline) -> Fit:
    """Compare the targets that exist with the declaration. Changes nothing."""
    problems: list[str] = []
    filled: list[tuple[PostgresTable, Target, dict[str, str]]] = []
    targets = []
    for sink in pipeline.tables:
        try:
            refuse_lost(connection, pipeline, sink)
            target = find_target(connection, sink.table)
            if target is not None:
                targets.append(target)
                filled.append((sink, target, filled_columns(connection, pipeline, sink, target)))
        except TargetError as error:
            problems.append(error.said)
    try:
        refuse_unorderable(connection, pipeline, targets)
    except TargetError as error:
        problems.append(error.said)
    notes = [note for sink, target, _ in filled if (note := _forgotten_order(pipeline, sink, target)) is not None]
    if pipeline.is_transformed or any(sink.select is not None for sink in pipeline.targets):
        # Which columns a function takes from the record is its own matter.
        return Fit(problems=problems, notes=notes)
    used = {name for _, _, columns in filled for name in columns}
    used |= {name for sink in pipeline.written for name in (*(sink.columns or ()), *sink.key, *sink.order_by)}
    notes += [
        note
        for sink, target, columns in filled
        if sink.columns is None and (note := _unfilled(pipeline, sink, target, columns, used)) is not None
    ]
    return Fit(problems=problems, notes=notes)


def _forgotten_order(pipeline: Pipeline, sink: PostgresTable, target: Target) -> str | None:
    """What a table lacks to keep the declared order from one epoch to the next."""
    kinds = order_columns(sink, pipeline.parsed_columns)
    missing = [order_column(name) for name in sink.order_by if order_column(name) not in target.columns]
    if sink.mode != "upsert" or not missing:
        return None
    adds = ", ".join(f"ADD {name} {kinds[name]}" for name in missing if name in kinds) or f"ADD {missing[0]} …"
    return (
        f"{pipeline.name}: target {sink.table} has no column {', '.join(missing)}, so that it keeps its order_by within"
        f" an epoch alone: in a later epoch an older record replaces a newer row. Run ALTER TABLE {sink.table} {adds}"
    )


def _unfilled(
    pipeline: Pipeline, sink: PostgresTable, target: Target, filled: dict[str, str], used: set[str]
) -> str | None:
    """What the record has and no sink takes, if the table has columns that nothing fills."""
    written = {*filled, *sink.added_columns, *map(order_column, sink.order_by)}
    writable = [name for name, column in target.columns.items() if column.writable]
    left = [name for name in writable if name not in written and not name.startswith("_")]
    alike = {name.casefold(): name for name in left}
    record = [name for name in pipeline.parsed_columns if name not in filled]
    unused = [name for name in record if name not in used or name.casefold() in alike]
    if sink.mode == "add" or not left or not unused:
        return None
    near = [f"{name} and {alike[name.casefold()]}" for name in unused if name.casefold() in alike]
    return (
        f"{pipeline.name}: nothing fills {', '.join(left)} of target {sink.table}, and {', '.join(unused)} of the"
        " record goes nowhere" + (f"; different only in case: {', '.join(near)}" if near else "")
    )
