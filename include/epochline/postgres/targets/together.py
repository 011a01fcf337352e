"""Apply an epoch to all its targets, in the order that foreign keys between them ask for (ADR 0041).

The commit and the trial at the seal both go this way, so that what is tried is what will be done.
"""

from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import Connection

from epochline.ports import Applied
from epochline.postgres.targets.accounting import Check, watch
from epochline.postgres.targets.application import Application
from epochline.postgres.targets.foreign_keys import defer, parents_first
from epochline.postgres.targets.modes import insert, take_all_away
from epochline.postgres.targets.upsert import Upsert


def in_order(tables: Sequence[Application]) -> list[Application]:
    """The tables, each after those that it refers to."""
    order, circle = parents_first([what.target for what in tables])
    places = [*order, *circle]
    return sorted(tables, key=lambda what: places.index(what.target.place))


def apply_together(
    connection: Connection,
    tables: Sequence[Application],
    at: Callable[[Application | None], None] = lambda what: None,
    *,
    watched: bool = False,
) -> tuple[dict[str, Applied], list[Check]]:
    """Apply staging to targets.

    Rows are taken away children first, and written parents first. Constraints that can be deferred are compared at the
    end.

    Args:
        connection: in the epoch's transaction.
        tables: to apply.
        at: told which table the next statements concern; None before constraints that waited are compared.
        watched: whether something else than these statements may change a target.

    Returns:
        By table, what happened to it; and the checks of watched tables, for the end of the transaction.

    Raises:
        psycopg2.Error: a target refuses the rows.
        TargetError: the counts of a target do not add up to its staged rows, or its rows cannot be replaced.
    """
    ordered = in_order(tables)
    watches = {what.sink.table: watch(what) for what in ordered if watched}
    defer(connection, [what.target for what in tables])
    replaced = [what for what in reversed(ordered) if what.sink.mode == "replace"]
    for what in replaced:
        at(what)
        take_all_away(what, {other.target.place for other in replaced})
    upserts = {what.sink.table: Upsert(what) for what in ordered if what.sink.mode == "upsert"}
    applied: dict[str, Applied] = {}
    for number, what in enumerate(ordered):
        at(what)
        if what.sink.table in upserts:
            left = [other.sink.table for other in reversed(ordered[number:])]
            later = [upserts[table] for table in left if table in upserts]
            upserts[what.sink.table].write(partial(_delete_early, later))
        else:
            applied[what.sink.table] = insert(what)
    for what in reversed(ordered):
        if what.sink.table in upserts:
            at(what)
            upserts[what.sink.table].delete()
            applied[what.sink.table] = upserts[what.sink.table].finish()
    at(None)
    defer(connection, [what.target for what in tables], "IMMEDIATE")
    return applied, [check(applied[table]) for table, check in watches.items()]


def _delete_early(upserts: Sequence[Upsert]) -> None:
    """Delete what the epoch deletes from these targets, in their order; all of it or nothing."""
    done: list[Upsert] = []
    try:
        for upsert in upserts:
            done += [upsert] if upsert.delete() else []
    except BaseException:
        for upsert in done:
            upsert.delete_later()
        raise
