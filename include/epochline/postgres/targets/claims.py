"""Whose a target is, and whether it is still the table that epochs wrote (ADR 0040).

Each target has one pipeline that writes it, and so have the tables that share rows with it. The heads are past the
records of its rows. If another table takes its place, no run reads them again, so that later epochs would commit into a
table that lacks them, and nothing would show it.
"""

import os
from collections.abc import Collection, Sequence
from typing import Any

from psycopg2 import sql

from epochline.declare.external import Files
from epochline.declare.names import OWNER, deleted_keys_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.postgres.queries.statements import Connection, query, run, where
from epochline.postgres.targets.catalog import find_target

_POSITION = frozenset({"_topic", "_partition", "_offset"})


def refuse_foreign(connection: Connection, pipeline: Pipeline) -> None:
    """As `epochline.ports.Targets.refuse_foreign`."""
    new_sinks: list[str] = []
    for schema, table, sink in _places(pipeline):
        owner = run(connection, "pipeline_of_target", schema=schema, table=table).scalar_one_or_none()
        _check_owner(pipeline, schema, sink, pipeline.name if owner is None else owner)
        new_sinks += [sink] * (owner is None)
    _refuse_rows_of_others(connection, pipeline, new_sinks)
    for target in pipeline.tables:
        check_provenance(connection, pipeline, target)


def claim(connection: Connection, pipeline: Pipeline) -> None:
    """As `epochline.ports.Targets.claim`."""
    new_sinks: list[str] = []
    for schema, table, sink in _places(pipeline):
        place = {"schema": schema, "table": table}
        new_sinks += [sink] * run(connection, "claim_target", **place, pipeline=pipeline.name, sink=sink).rowcount
        _check_owner(pipeline, schema, sink, run(connection, "pipeline_of_target", **place).scalar_one())
    _refuse_rows_of_others(connection, pipeline, new_sinks)
    for target in pipeline.tables:
        refuse_lost(connection, pipeline, target)
        remember(connection, pipeline, target)


def _places(pipeline: Pipeline) -> list[tuple[str, str, str]]:
    """Schema, table and name of each sink with one writer. An empty schema marks a folder: no table has one."""
    tables = [(*split_table(sink.table), sink.table) for sink in pipeline.tables]
    return tables + [("", path, sink) for path, sink in folders_of(pipeline).items()]


def folders_of(pipeline: Pipeline) -> dict[str, str]:
    """By path, the sinks that are folders: by the declared path and, on a disk, by the one without symbolic links.

    Raises:
        TargetError: two sinks are one folder. Their epochs have the same manifest entry, which names files of one.
    """
    folders: dict[str, str] = {}
    for sink in pipeline.external:
        if isinstance(sink, Files):
            real = os.path.realpath(sink.path) if sink.path.startswith("/") else sink.path
            for path in (sink.path, real):
                other = folders.setdefault(path, sink.name)
                if other != sink.name:
                    raise TargetError(
                        f"{pipeline.name}: target {sink.name} is the folder of {other}, by a symbolic link. Nothing was"
                        " changed. Declare another one.",
                        f"plan {pipeline.name}",
                    )
    return folders


def _refuse_rows_of_others(connection: Connection, pipeline: Pipeline, new_sinks: Collection[str]) -> None:
    """Refuse rows of other writers: where a claim names the writer first, then in tables that nobody claimed."""
    for target in pipeline.tables:
        _refuse_shared_rows(connection, pipeline, target)
    for target in pipeline.tables:
        if target.table in new_sinks and target.carried_lineage:
            _refuse_foreign_rows(connection, pipeline.name, target.table, list(target.carried_lineage))


def _check_owner(pipeline: Pipeline, schema: str, sink: str, owner: str) -> None:
    if owner != pipeline.name:
        raise TargetError(
            f"{pipeline.name}: target {sink} belongs to pipeline {owner}. A {'table' if schema else 'folder'} has one"
            " writer, because rows of two could not be told apart. Nothing was changed. Declare another one.",
            f"plan {pipeline.name}",
        )


def _refuse_shared_rows(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse a table that holds rows of another target: its parent, its partition, or its heir (INV-2).

    DELETE and UPDATE reach the rows of every partition and heir. A table that was renamed is known by its oid.
    """
    schemas, tables = map(list, zip(*(split_table(target.table) for target in pipeline.tables), strict=True))
    declared = {"pipeline": pipeline.name, "schemas": schemas, "tables": tables}
    sharing = next(iter(run(connection, "claims_that_share_rows", **where(sink.table), **declared)), None)
    if sharing is not None:
        ours = sharing.pipeline == pipeline.name
        whose = "this pipeline writes as well" if ours else f"belongs to pipeline {sharing.pipeline}"
        raise TargetError(
            f"{pipeline.name}: target {sink.table} shares rows with {sharing.schema_name}.{sharing.table_name}, which"
            f" {whose}: one is the other's parent, partition or heir, or the other's under a new name. A row has one"
            " writer. Nothing was changed. Detach the table, or declare another one.",
            f"plan {pipeline.name}",
        )


def _refuse_foreign_rows(connection: Connection, pipeline: str, table: str, lineage: Sequence[str]) -> None:
    """Refuse a newly claimed table that contains rows with positions of another pipeline."""
    target = find_target(connection, table)
    if target is None:
        return
    if query(connection, "SELECT 1 FROM {table} WHERE _epoch IS NOT NULL LIMIT 1", table=target.identifier):
        reset = f"UPDATE {table} SET {', '.join(f'{name} = NULL' for name in lineage)}"  # noqa: S608 - said, not run
        raise TargetError(
            f"{pipeline}: {table} holds rows that another pipeline wrote, with positions and epochs of its own. New"
            " rows would be compared with positions of other records. Nothing was changed. Declare another table,"
            f" or make those rows older than every record: {reset} WHERE _epoch IS NOT NULL;",
            f"plan {pipeline}",
        )


def check_provenance(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse an append target with a foreign owner or key, unless it is declared as existing: without columns."""
    if sink.mode != "append" or sink.columns is None:
        return
    subject = f"{pipeline.name}: target {sink.table}"
    provenance = run(connection, "provenance_of_table", **where(sink.table)).one()
    remedy = (
        "Declare another table; or leave out `columns`, which declares a table that exists, with keys and an owner of"
        " its own"
    )
    if not provenance.is_ours:
        raise TargetError(
            f"{subject} belongs to the role {provenance.owner}, and Epochline makes no table as this role: another"
            f" program's rows may be in it. Nothing was changed. {remedy}; or, if the table is this pipeline's, run"
            f" ALTER TABLE {sink.table} OWNER TO {OWNER}.",
            "migrate",
        )
    filled, sink_key = {*sink.columns, *sink.added_columns}, set(sink.key)
    unknown = [
        f"{key['name']} ({', '.join(key['columns']) or 'an expression'})"
        for key in provenance.keys
        # A column that the database fills makes rows differ, and so does the record's position.
        if key["covers_more"]
        or (set(key["columns"]) <= filled and not set(key["columns"]) >= _POSITION and set(key["columns"]) != sink_key)
    ]
    if unknown:
        raise TargetError(
            f"{subject} has a unique key that the declaration does not know: {'; '.join(unknown)}. In mode 'append' the"
            f" second record of a key would be refused. Nothing was changed. {remedy}; or declare this key,"
            " in mode 'upsert' or with repeats='skip'.",
            "migrate",
        )


def refuse_lost(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse a target that lacks what epochs wrote."""
    why = _Claimed(connection, pipeline, sink).lost()
    if why is not None:
        name = pipeline.name
        raise TargetError(
            f"{name}: target {sink.table} {why}. The heads are past the records of its rows, so no run would read them"
            " again. Nothing was changed. Bring the table back. If that cannot be, `epochline accept-state"
            f" {name} --reason …` goes on with what there is; a missing table is made by `epochline migrate` after it."
            " Then `restore` takes an older copy back to a savepoint of its time, and `replay` writes the rows of an"
            " append target again, epoch by epoch. Or a pipeline under another name, with another table, reads the past"
            " with `extend-back`.",
            f"plan {name}",
        )


def missing_rows(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> str | None:
    """What a target lacks of the rows that epochs left, or None; counts the whole table of an upsert.

    Rows that were there before the first epoch only add to them.
    """
    claimed = _Claimed(connection, pipeline, sink)
    why = claimed.lost()
    if why is not None or sink.mode != "upsert" or isinstance(sink, StateTable):
        return why
    least = claimed.due().least
    if claimed.claim.now is None or least <= 0:
        return None
    [(rows,)] = query(connection, "SELECT count(*) FROM {table}", table=_identifier(sink.table))
    return f"has {rows} rows, and its epochs left at least {least}" if rows < least else None


def remember(connection: Connection, pipeline: Pipeline, sink: PostgresTable, accepted: int | None = None) -> None:
    """Keep which table is the target now, after `refuse_lost`, or the epoch after which an operator accepted it."""
    claim = _Claimed(connection, pipeline, sink).claim
    if accepted is None and (claim.relation, claim.deleted_keys) == (claim.now, claim.deleted_now):
        return
    now = {"relation": claim.now, "deleted_keys": claim.deleted_now, "accepted": accepted}
    run(connection, "remember_relation", pipeline=pipeline.name, **where(sink.table), **now)


class _Claimed:
    """The table that a claim is of, and the one that has its name now."""

    def __init__(self, connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
        self._connection, self._pipeline, self._sink = connection, pipeline, sink
        self._side = deleted_keys_table(pipeline.name, sink.table)
        names = {"pipeline": pipeline.name, "deleted_keys": self._side}
        self.claim = run(connection, "claimed_relation", **where(sink.table), **names).one()

        self._after = {"pipeline": pipeline.name, "sink": sink.table, "after": self.claim.accepted_epoch}

    def lost(self) -> str | None:
        """What shows that the target lacks rows of epochs, as the end of a sentence that begins with its name; or None.

        The content of a state table is compared elsewhere (ADR 0012), and outbox rows are counted when they are sent.
        """
        sink, claim = self._sink, self.claim
        if isinstance(sink, StateTable):
            return None
        if claim.now is None:
            if not self._left():
                return None
            return "is gone" + ("" if claim.moved_to is None else f": it is named {claim.moved_to} now")
        if isinstance(sink, Outbox) or not claim.may_read:
            return None  # Missing rights are told by a check of their own.
        if claim.relation not in (None, claim.now) and (why := self._unlike(self._left())) is not None:
            return why
        if sink.mode in ("upsert", "add") and self._is_empty(sink.table):
            due = self.due()
            if due.least > 0:
                return f"is empty, although epochs up to {due.epoch_id} left rows there"
        return self._deleted_keys_lost()

    def due(self) -> Any:
        """The number of rows that epochs left at least, and the newest of these epochs."""
        return run(self._connection, "rows_due_in_target", **self._after).one()

    def _left(self) -> list[int]:
        """The epochs that must have a row in the target, the newest first; of an outbox, those that are not sent."""
        if isinstance(self._sink, Outbox):
            due = run(self._connection, "due_receipts", pipeline=self._pipeline.name)
            unsent = [row.epoch_id for row in due if row.sink == self._sink.topic.name and row.rows]
            return [epoch for epoch in unsent if epoch > self.claim.accepted_epoch]
        replaced, left = 0, []
        for row in run(self._connection, "rows_of_epochs_in_target", **self._after):
            if row.written > replaced:
                left.append(row.epoch_id)
            if self._sink.mode == "replace":
                break
            replaced += row.replaced
        return left

    def _unlike(self, epochs: Sequence[int]) -> str | None:
        """Why a table of another oid does not hold the rows of these epochs; None if it does, as one from a dump."""
        if not epochs:
            return None
        another = "is another table than the one that epochs wrote"
        if "_epoch" not in self._sink.carried_lineage:
            return f"{another}, and without lineage nothing tells whether it has them"
        absent = "SELECT e FROM unnest({epochs}::bigint[]) e WHERE NOT EXISTS (SELECT FROM {t} t WHERE t._epoch = e)"
        missing = query(self._connection, absent, epochs=list(epochs), t=_identifier(self._sink.table))
        if not missing:
            return None
        others = f" and {len(missing) - 1} other epochs" if len(missing) > 1 else ""
        return f"{another}: it has no row of epoch {max(missing)[0]}{others}"

    def _deleted_keys_lost(self) -> str | None:
        """Whether deleted keys were forgotten, so that an older record that arrives later would bring one back."""
        if self.claim.deleted_keys in (None, self.claim.deleted_now):
            return None
        harm = "older records would bring deleted keys back"
        if self.claim.deleted_now is None:
            written = self.due().epoch_id is not None
            return f"has lost its table of deleted keys: {harm}" if written else None
        if self._is_empty(f"epochline.{self._side}") and self.due().deleted:
            return f"has a new table of deleted keys, which is empty: {harm}"
        return None

    def _is_empty(self, table: str) -> bool:
        return not query(self._connection, "SELECT 1 FROM {table} LIMIT 1", table=_identifier(table))


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*split_table(table))
