"""What a target must hold after an epoch: compared with staging when every statement, trigger and cascade is done.

A statement's count of rows says nothing of what a trigger did afterwards, and nothing of a rule that wrote elsewhere.
So tables that something else than our statements may change are looked at again (INV-9, ADR 0039). PostgreSQL's own
count of the rows that the transaction changed shows whether rows were added; if it differs, the table is read.
"""

from collections.abc import Callable, Sequence
from functools import partial

from psycopg2 import sql

from epochline.declare.columns import STAGED_LINEAGE, is_reserved
from epochline.declare.names import split_table
from epochline.declare.table import PostgresTable
from epochline.errors import TargetError
from epochline.ports import Applied, RowDifference, TableDifference
from epochline.postgres.queries.statements import Connection, compose, joined, names, query, same
from epochline.postgres.targets.application import Application, changed_rows
from epochline.postgres.targets.catalog import find_target
from epochline.postgres.targets.fates import count_unsettled
from epochline.protocol.staging import StagedTable

Check = Callable[[], object]
"""Looks at a table after the last statement; raises `TargetError` if it does not hold what it must."""


def watch(what: Application) -> Callable[[Applied], Check]:
    """Look at a target that something else may change, before staging is applied.

    Returns:
        From what was done, the check to make when all tables are applied and deferred constraints were checked.
    """
    sums = _keep_sums(what) if what.sink.mode == "add" else None
    rows = what.number("SELECT count(*) FROM {target}") if what.sink.mode == "append" and not what.has_epoch else 0
    changed = changed_rows(what)

    def check(applied: Applied) -> None:
        # Row-level security that began after the first look hides rows from this one.
        find_target(what.connection, what.sink.table)
        wrong = _wrong_rows(what, applied, changed, rows) if sums is None else _wrong_sums(what, sums)
        if wrong is not None:
            raise TargetError(
                f"{what.epoch}: {what.sink} does not hold what was written: {wrong}. A trigger, a rule or a cascade of"
                " a foreign key drops, moves, changes or adds rows. Nothing was changed. Remove it and repeat the task,"
                " or abort the epoch.",
                f"run {what.epoch.pipeline}",
            )

    return lambda applied: partial(check, applied)


def _wrong_rows(what: Application, applied: Applied, changed: tuple[int, int, int], rows: int) -> str | None:
    """The difference between a target and what was applied, in words without values; None if there is none."""
    lost = None
    due = (applied.rows, 0, 0)
    if what.sink.mode == "upsert":
        wrong = count_unsettled(what)
        lost = f"{wrong} keys are not as their newest record says" if wrong else None
        if applied.upserted is not None:
            lost = lost or _wrong_places(what, applied.upserted.inserted + applied.upserted.updated)
            due = (applied.upserted.inserted, applied.upserted.updated, applied.upserted.deleted)
    elif what.sink.repeats == "skip":
        lost = _missing_keys(what)
    since = tuple(now - then for now, then in zip(changed_rows(what), changed, strict=True))
    if lost is not None or (since == due and what.sink.mode != "replace"):
        return lost
    return _other_rows(what, due[0] + due[1], rows)


def _other_rows(what: Application, due: int, before: int) -> str | None:
    sink = what.sink
    if sink.mode == "replace" or (sink.mode == "append" and not what.has_epoch):
        present = what.number("SELECT count(*) FROM {target}")
        # Other programs may write to an append target at the same time, and nothing tells their rows apart.
        if present < before + due if sink.mode == "append" else present != due:
            return f"{before + due} rows are due, and {present} are there"
    if not what.has_epoch:
        return None
    present = what.number("SELECT count(*) FROM {target} WHERE _epoch = {epoch}")
    if present != due:
        return f"{due} rows of the epoch are due, and {present} are there"
    if sink.mode == "upsert" or sink.repeats == "skip" or not STAGED_LINEAGE.keys() <= sink.carried_lineage.keys():
        return None
    lost = what.number(
        "SELECT count(*) FROM (SELECT {place} FROM {staging} EXCEPT ALL"
        " SELECT {place} FROM {target} WHERE _epoch = {epoch}) m",
        place=names(STAGED_LINEAGE),
    )
    return f"{lost} rows are missing, and as many others have the epoch's number" if lost else None


def _wrong_places(what: Application, due: int) -> str | None:
    """Rows of an upsert with another epoch or position: later records of their keys would seem older."""
    if not what.has_epoch:
        return None
    statement = "SELECT count(*) FROM ({winners}) w JOIN {target} t ON {same} WHERE t._epoch = {epoch}"
    if what.kept_order:
        statement += " AND ({t}) = ({w})"
    present = what.number(statement, t=names(what.kept_order, "t"), w=names(what.kept_order, "w"))
    if present == due:
        return None
    return f"{due} rows of the epoch are due, and {present} are there with its number and position"


def _missing_keys(what: Application) -> str | None:
    missing = what.number(
        "SELECT count(*) FROM (SELECT DISTINCT {key} FROM {staging}) w"
        " WHERE NOT EXISTS (SELECT FROM {target} t WHERE {same})"
    )
    return f"{missing} keys are missing" if missing else None


def sums_by_key(what: Application) -> sql.Composed:
    """The query for the staged measures, summed by key."""
    sums = joined(
        compose("CAST(coalesce(sum({m}), 0) AS {kind}) AS {m}", m=name, kind=sql.SQL(what.staged.columns[name]))
        for name in what.sink.measures
    )
    return what.compose("SELECT {key}, {sums} FROM {staging} s GROUP BY {key} ORDER BY {key}", sums=sums)


def _keep_sums(what: Application) -> sql.Identifier:
    """The sums that each staged key must have afterwards, in a temporary table. Locks the rows that the keys have."""
    what.query("SELECT 1 FROM {target} t WHERE EXISTS (SELECT FROM {staging} w WHERE {same}) FOR UPDATE")
    sums = f"epochline_sums_{what.target.oid}"
    what.change(
        "CREATE TEMP TABLE {sums} ON COMMIT DROP AS SELECT {keys}, {added} FROM ({by_key}) w LEFT JOIN {target} t ON"
        " {same}",
        sums=sums, keys=names(what.sink.key, "w"), by_key=sums_by_key(what),
        added=joined(compose("coalesce(t.{m}, 0) + w.{m} AS {m}", m=name) for name in what.sink.measures),
    )  # fmt: skip
    return sql.Identifier("pg_temp", sums)


def _wrong_sums(what: Application, sums: sql.Identifier) -> str | None:
    key, measures = what.sink.key, what.sink.measures
    wrong = what.number(
        "SELECT count(*) FROM {sums} s LEFT JOIN {target} t ON {same}"
        " WHERE t.{first} IS NULL OR ({there}) IS DISTINCT FROM ({due})",
        sums=sums, same=same(key, "t", "s"), first=key[0], there=names(measures, "t"), due=names(measures, "s"),
    )  # fmt: skip
    return f"{wrong} keys have another sum than is due" if wrong else None


def difference(
    connection: Connection, sink: PostgresTable, staged: StagedTable, epoch_id: int, samples: int
) -> TableDifference:
    """Compare row by row. A row is identified by the position of its record and its number within the record.

    Values are compared as text, because some types of PostgreSQL have no equality operator.
    """
    columns = [name for name in staged.columns if not is_reserved(name)]
    compared = compose(
        "SELECT CASE WHEN t._offset IS NULL THEN 'inserted' WHEN s._offset IS NULL THEN 'deleted'"
        " WHEN {before} IS DISTINCT FROM {after} THEN 'changed' ELSE 'same' END AS kind,"
        " {place}, {before} AS before, {after} AS after"
        " FROM (SELECT * FROM {target} WHERE _epoch = {epoch}) t FULL JOIN {staging} s ON {same_place}",
        before=_texts(columns, "t"), after=_texts(columns, "s"), epoch=epoch_id,
        place=joined(compose("coalesce(t.{c}, s.{c}) AS {c}", c=name) for name in STAGED_LINEAGE),
        target=sql.Identifier(*split_table(sink.table)), staging=sql.Identifier("epochline_staging", staged.table),
        same_place=same(STAGED_LINEAGE, "t", "s"),
    )  # fmt: skip
    counts = dict(query(connection, "SELECT kind, count(*) FROM ({compared}) c GROUP BY kind", compared=compared))
    rows = query(
        connection,
        "SELECT * FROM ({compared}) c WHERE kind <> 'same' ORDER BY 2, 3, 4, 5 LIMIT {samples}",
        compared=compared, samples=samples,
    )  # fmt: skip
    return TableDifference(
        table=sink.table,
        samples=[_row(columns, *row) for row in rows],
        **{kind: int(counts.get(kind, 0)) for kind in ("same", "inserted", "deleted", "changed")},
    )


def _row(
    columns: Sequence[str], kind: str, topic: str, partition: int, offset: int, number: int,
    before: Sequence[str | None], after: Sequence[str | None],
) -> RowDifference:  # fmt: skip
    was, now = dict(zip(columns, before, strict=True)), dict(zip(columns, after, strict=True))
    if kind == "changed":
        changed = [name for name in columns if was[name] != now[name]]
        was, now = {name: was[name] for name in changed}, {name: now[name] for name in changed}
    return RowDifference(
        kind=kind, place=(topic, partition, offset, number),
        before={} if kind == "inserted" else was, after={} if kind == "deleted" else now,
    )  # fmt: skip


def _texts(columns: Sequence[str], side: str) -> sql.Composed:
    texts = joined(compose("{c}::text", c=sql.Identifier(side, name)) for name in columns)
    return compose('(ARRAY[{texts}] COLLATE "C")', texts=texts)
