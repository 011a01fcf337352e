"""One MERGE for an upsert that leaves no key out (ADR 0057).

Without a declared order, every key of an epoch is usually newer than the target's row. So all are written, and counted
three times: by the statement, by PostgreSQL's counters of the table, and as keys of staging. If the counts differ,
nothing was changed, and `upsert.Upsert` predicts what becomes of each row.

A row is written only if both wordings of its order say so, those of the prediction and those of the statement.
"""

from functools import partial

from epochline.declare.state import StateTable
from epochline.ports import Upserted
from epochline.postgres.queries.statements import compose, joined, names
from epochline.postgres.targets.application import Application, attempt, changed_rows
from epochline.postgres.targets.exclusive import is_exclusive
from epochline.postgres.targets.fates import behind, not_deleted_since, replaces, set_columns, stays


def merges_all(what: Application) -> bool:
    """Whether one statement may write each key, as far as declaration and catalog tell.

    A trigger, a rule or another key would see MERGE do something else than INSERT ON CONFLICT does. A trial goes that
    way alone, because it refuses more: a row that is only updated must still fit with the defaults of a new one.
    """
    target, sink = what.target, what.sink
    plain = what.rows is None and not (target.has_other_rules or target.is_changed_by_others or is_exclusive(what))
    return plain and not sink.order_by and not isinstance(sink, StateTable) and bool(set_columns(what))


def merge_all(what: Application, staged: int) -> Upserted | None:
    """Write the winners of an epoch without tombstones; None, with nothing changed, if not every one was written."""
    done = attempt(what.connection, partial(_all_written, what, staged), keep=lambda done: done is not None)
    return done if isinstance(done, Upserted) else None


def _all_written(what: Application, staged: int) -> Upserted | None:
    inserted_before, updated_before, _ = changed_rows(what)
    written = _merge(what)
    inserted_since, updated_since, _ = changed_rows(what)
    inserted, updated = inserted_since - inserted_before, updated_since - updated_before
    keys = staged
    if written != staged:
        keys = what.number("SELECT count(*) FROM (SELECT DISTINCT {key} FROM {staging}) k")
    if not written == keys == inserted + updated:
        return None
    return Upserted(inserted=inserted, updated=updated, deleted=0, superseded=staged - written, unchanged=0)


def _merge(what: Application) -> int:
    values, (deletion, late) = what.given("w"), behind(what)
    # A hash join would write the keys in the order of hashes or of the target. The others keep them sorted.
    what.change("SET LOCAL enable_hashjoin = off")
    written = what.change(
        "MERGE INTO {target} AS t USING (SELECT w.* FROM ({winners}) w{deletion} WHERE {not_deleted} AND ({late}) IS"
        " NOT TRUE ORDER BY {sorted}) w ON {same} WHEN MATCHED AND {replaces} AND ({stays}) IS NOT TRUE THEN UPDATE SET"
        " {changed} WHEN NOT MATCHED THEN INSERT ({into}) VALUES ({values})",
        deletion=deletion, not_deleted=not_deleted_since(what), late=late, sorted=names(what.sink.key, "w"),
        replaces=replaces(what, "w", "t"), stays=stays(what), into=names(values), values=joined(values.values()),
        changed=joined(compose("{c} = {value}", c=name, value=values[name]) for name in set_columns(what)),
    )  # fmt: skip
    what.change("SET LOCAL enable_hashjoin TO DEFAULT")
    return written
