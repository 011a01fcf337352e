"""Whether a target is still the table that epochs wrote (ADR 0040).

The heads are past the records of its rows. If another table takes its place, no run reads them again, so that later
epochs would commit into a table that lacks them, and nothing would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg2 import sql
from sqlalchemy import Connection

from epochline.declare.names import deleted_keys_table, split_table
from epochline.declare.pipeline import Pipeline
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable
from epochline.declare.topic import Outbox
from epochline.errors import TargetError
from epochline.postgres.queries.composed import execute_sql
from epochline.postgres.queries.statements import run


def refuse_lost(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> None:
    """Refuse a target that lacks what epochs wrote.

    Raises:
        TargetError: names the ways to bring the rows back, and the operation that accepts the table as it is.
    """
    why = lost(connection, pipeline, sink)
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


def lost(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> str | None:
    """What shows that a target lacks rows of epochs, as the end of a sentence that begins with its name; or None.

    None as well if no epoch left rows in it. The content of a state table is compared elsewhere (ADR 0012), and the
    rows of an outbox are counted when they are sent.
    """
    if isinstance(sink, StateTable):
        return None
    found = _found(connection, pipeline, sink)
    if found.now is None:
        if not _left(connection, pipeline, sink, found):
            return None
        return "is gone" + ("" if found.moved_to is None else f": it is named {found.moved_to} now")
    if isinstance(sink, Outbox) or not found.may_read:
        return None  # Missing rights are told by a check of their own.
    if found.relation not in (None, found.now):
        why = _unlike(connection, sink, _left(connection, pipeline, sink, found))
        if why is not None:
            return why
    if sink.mode in ("upsert", "add") and _is_empty(connection, sink.table):
        due = _rows_due(connection, pipeline, sink, found)
        if due.least > 0:
            return f"is empty, although epochs up to {due.epoch_id} left rows there"
    return _deleted_keys_lost(connection, pipeline, sink, found)


def _found(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> Any:
    schema, table = split_table(sink.table)
    side = deleted_keys_table(pipeline.name, sink.table)
    return run(
        connection, "claimed_relation", pipeline=pipeline.name, schema=schema, table=table, deleted_keys=side
    ).one()  # fmt: skip


def _left(connection: Connection, pipeline: Pipeline, sink: PostgresTable, found: Any) -> list[int]:
    """The epochs that must have a row in the target, the newest first; of an outbox, those that are not sent."""
    if isinstance(sink, Outbox):
        due = run(connection, "due_receipts", pipeline=pipeline.name)
        unsent = [row.epoch_id for row in due if row.sink == sink.topic.name and row.rows]
        return [epoch for epoch in unsent if epoch > found.accepted_epoch]
    where = {"pipeline": pipeline.name, "sink": sink.table, "after": found.accepted_epoch}
    gone, left = 0, []
    for row in run(connection, "rows_of_epochs_in_target", **where):
        if row.written > gone:
            left.append(row.epoch_id)
        if sink.mode == "replace":
            break
        gone += row.replaced
    return left


def _unlike(connection: Connection, sink: PostgresTable, epochs: Sequence[int]) -> str | None:
    """Why a table of another oid does not hold the rows of these epochs; None if it does, as one from a dump would."""
    if not epochs:
        return None
    if "_epoch" not in sink.carried_lineage:
        return "is another table than the one that epochs wrote, and without lineage nothing tells whether it has them"
    statement = sql.SQL("SELECT e FROM unnest({}::bigint[]) e WHERE NOT EXISTS (SELECT FROM {} t WHERE t._epoch = e)")
    missing = execute_sql(connection, statement.format(sql.Literal(list(epochs)), _identifier(sink.table)))[1]
    if not missing:
        return None
    more = f" and {len(missing) - 1} other epochs" if len(missing) > 1 else ""
    return f"is another table than the one that epochs wrote: it has no row of epoch {max(missing)[0]}{more}"


def _is_empty(connection: Connection, table: str) -> bool:
    return not execute_sql(connection, sql.SQL("SELECT 1 FROM {} LIMIT 1").format(_identifier(table)))[1]


def _rows_due(connection: Connection, pipeline: Pipeline, sink: PostgresTable, found: Any) -> Any:
    where = {"pipeline": pipeline.name, "sink": sink.table, "after": found.accepted_epoch}
    return run(connection, "rows_due_in_target", **where).one()


def _deleted_keys_lost(connection: Connection, pipeline: Pipeline, sink: PostgresTable, found: Any) -> str | None:
    """Whether deleted keys were forgotten, so that an older record that arrives later would bring one back."""
    if found.deleted_keys in (None, found.deleted_now):
        return None
    if found.deleted_now is None:
        written = _rows_due(connection, pipeline, sink, found).epoch_id is not None
        return "has lost its table of deleted keys: older records would bring deleted keys back" if written else None
    side = f"epochline.{deleted_keys_table(pipeline.name, sink.table)}"
    if _is_empty(connection, side) and _rows_due(connection, pipeline, sink, found).deleted:
        return "has a new table of deleted keys, which is empty: older records would bring deleted keys back"
    return None


def missing_rows(connection: Connection, pipeline: Pipeline, sink: PostgresTable) -> str | None:
    """What `lost` says, or by how much an upsert target has fewer rows than its epochs left; counts the whole table.

    Rows that were there before the first epoch only add to them.
    """
    why = lost(connection, pipeline, sink)
    if why is not None or sink.mode != "upsert" or isinstance(sink, StateTable):
        return why
    found = _found(connection, pipeline, sink)
    least = _rows_due(connection, pipeline, sink, found).least
    if found.now is None or least <= 0:
        return None
    [(rows,)] = execute_sql(connection, sql.SQL("SELECT count(*) FROM {}").format(_identifier(sink.table)))[1]
    return f"has {rows} rows, and its epochs left at least {least}" if rows < least else None


def remember(connection: Connection, pipeline: Pipeline, sink: PostgresTable, accepted: int | None = None) -> None:
    """Keep which table is the target now.

    Args:
        connection: in the transaction of a claim, after `refuse_lost`.
        pipeline: whose target it is.
        sink: the target.
        accepted: the epoch after which an operator accepted the table as it is.
    """
    schema, table = split_table(sink.table)
    found = _found(connection, pipeline, sink)
    if accepted is None and (found.relation, found.deleted_keys) == (found.now, found.deleted_now):
        return
    run(
        connection, "remember_relation", pipeline=pipeline.name, schema=schema, table=table,
        relation=found.now, deleted_keys=found.deleted_now, accepted=accepted,
    )  # fmt: skip


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*split_table(table))
