"""The seal of a table: index and analyze staging, and find rows that the commit could not apply."""

from collections.abc import Iterable
from functools import partial

import psycopg2
from psycopg2 import sql

from epochline.declare.columns import INTEGERS, STAGED_LINEAGE, UNAVAILABLE, parse_type
from epochline.declare.names import order_column
from epochline.errors import RowsRefusedError
from epochline.ports import Prepared
from epochline.postgres.queries.statements import compose, joined, names, run, same
from epochline.postgres.targets.application import Application, attempt, error_in_words, refusal_by, rows_where
from epochline.postgres.targets.catalog import missing_rights, refused_by_publication
from epochline.postgres.targets.conversion import convert, judged, keep_values
from epochline.postgres.targets.exclusive import is_exclusive
from epochline.protocol.refused import RefusedRow

_LIMITS = {"smallint": (-(2**15), 2**15 - 1), "integer": (-(2**31), 2**31 - 1), "bigint": (-(2**63), 2**63 - 1)}
"""The lowest and the highest value of each integer type."""

_LONG = 2500
"""Bytes of values above which an index may refuse an entry. A B-tree refuses more than 2,704 bytes."""


def prepare(what: Application) -> Prepared:
    """Prepare the staging table for a short commit, and find the rows that the commit could not apply.

    Raises:
        RowsRefusedError: a key occurs in two partitions without a declared order, or a missing right, a publication, an
            exhausted sequence or a failing default would stop the commit.
    """
    sink, target = what.sink, what.target
    unfit = judged(what)
    if unfit:
        return Prepared(refused=unfit)
    convert(what)
    # A plain upsert sorts its rows faster than it reads them by an index.
    if sink.key and (sink.mode != "upsert" or sink.keep_unavailable):
        what.change("CREATE INDEX ON {staging} ({key})")
    what.change("SET LOCAL default_statistics_target = 10")
    what.change("ANALYZE {staging}")
    what.change("SET LOCAL default_statistics_target TO DEFAULT")
    _refuse_missing_rights(what)
    # A publication may have been made since the plan.
    published = refused_by_publication(what.connection, sink, target)
    if published is not None:
        raise RowsRefusedError(f"{what.pipeline.name}: {sink}: {published} Nothing was sealed.")
    _refuse_what_fills_the_rest(what)
    refused = _null_keys(what)
    if sink.keep_unavailable and not refused:
        refused += keep_values(what)
    refused += _nulls(what)
    if sink.mode == "upsert" and not sink.order_by and not refused:
        _refuse_unordered_keys(what)
    if sink.mode == "add":
        for measure in sink.measures:
            refused += _overflows(what, measure)
    if sink.repeats == "refuse" and not refused:
        refused += _repeats(what)
    broken, unknown = _broken_checks(what)
    return Prepared(
        refused=refused + broken,
        untried=target.has_other_rules
        or target.is_changed_by_others
        or is_exclusive(what)
        or unknown
        or any(target.columns[name].is_judged for name in sink.measures)
        or _has_long_values(what),
        reads_others=target.is_changed_by_others,
    )


def _refuse_missing_rights(what: Application) -> None:
    """Refuse to seal rows that this login may not commit."""
    deletes = what.sink.mode == "upsert" and bool(what.query("SELECT 1 FROM {staging} WHERE {deleted} LIMIT 1"))
    columns = [*what.carried, *what.sink.added_columns]
    missing = missing_rights(what.connection, what.sink, columns=columns, deletes=deletes)
    if missing:
        raise RowsRefusedError(
            f"{what.pipeline.name}: {what.sink}: the ledger's login may not commit what is staged. Nothing was sealed."
            f" Missing: {'; '.join(missing)}."
        )


def _refuse_what_fills_the_rest(what: Application) -> None:
    """Refuse to seal if a sequence has too few values left for the staged rows, or a default fails."""
    filled = {*what.carried, *what.sink.added_columns}
    unfilled = {name: column for name, column in what.target.columns.items() if name not in filled}
    unfilled = {name: column for name, column in unfilled.items() if column.has_default and not column.generated}
    if not unfilled:
        return
    subject, rows = f"{what.pipeline.name}: {what.sink}", what.number("SELECT count(*) FROM {staging}")
    sequences = _sequences(what)
    for name, column in unfilled.items():
        if name in sequences:
            sequence, left = sequences[name]
            if left is not None and left < rows:
                raise RowsRefusedError(
                    f"{subject}: sequence {sequence}, which fills {name}, has {left} values left, and {rows} rows are"
                    " staged. Nothing was sealed. Widen the column and the sequence."
                )
        elif column.expression is not None:
            fill = partial(what.query, "SELECT {default}", default=sql.SQL(column.expression))
            error = attempt(what.connection, fill, keep=False)
            if isinstance(error, psycopg2.Error):
                raise refusal_by(error)(
                    f"{subject}: the default of {name} fails: {error_in_words(error)[0]}. Nothing was sealed. Correct"
                    " the default, or fill the column."
                )


def _sequences(what: Application) -> dict[str, tuple[str, int | None]]:
    """By column, its sequence and the number of values left; None if the number is unlimited or unknown."""
    left: dict[str, tuple[str, int | None]] = {}
    for row in run(what.connection, "sequences_of_table", oid=what.target.oid):
        low, high = _LIMITS.get(row.kind, (row.lowest, row.highest))
        end = min(row.highest, high) if row.step > 0 else max(row.lowest, low)
        no_limit = row.cycles or row.last is None
        left[row.filled] = (row.sequence, None if no_limit else max((end - row.last) // row.step, 0))
    return left


def _broken_checks(what: Application) -> tuple[list[RefusedRow], bool]:
    """The staged rows that break a check of the target, and whether some check needs a trial.

    A check can be evaluated in staging if staging has all its columns. Mode ``add`` needs a trial: it sums rows.
    """
    refused: list[RefusedRow] = []
    unknown = False
    for check in what.target.checks:
        if what.sink.mode == "add" or not check.columns or not check.columns <= {*what.carried}:
            unknown = True
            continue
        expression = sql.SQL(check.expression)
        breaks = compose("{counts} AND ({check}) IS FALSE", counts=what.no_tombstone, check=expression)
        rows = attempt(what.connection, partial(rows_where, what, breaks, f"check {check.name}"), keep=False)
        if isinstance(rows, psycopg2.Error):
            unknown = True
        else:
            refused += rows
    return refused, unknown


def _has_long_values(what: Application) -> bool:
    """Whether the values of a staged row may be too long for an index of the target. Staging measured keys of text."""
    columns, key = what.target.columns, what.sink.key
    sums = [
        joined((compose("coalesce(pg_column_size(s.{c}), 0)", c=name) for name in index if name in what.carried), " + ")
        for index in what.target.long_indexes
        if set(index) & set(what.carried) and any(name not in key or columns[name].kind != "text" for name in index)
    ]
    if not sums:
        return False
    longest = joined((compose("{sum} > {long}", sum=sum, long=_LONG) for sum in sums), " OR ")
    return bool(what.query("SELECT 1 FROM {staging} s WHERE {longest} LIMIT 1", longest=longest))


def _is_null(columns: Iterable[str]) -> sql.Composed:
    return joined((compose("{c} IS NULL", c=name) for name in columns), " OR ")


def _null_keys(what: Application) -> list[RefusedRow]:
    """Rows with a NULL in a column of the key or of the order. NULL cannot be compared."""
    refused: list[RefusedRow] = []
    for role, columns in (("key", what.sink.key), ("order_by", list(map(order_column, what.sink.order_by)))):
        if columns:
            refused += rows_where(what, _is_null(columns), f"a NULL in its {role} ({', '.join(columns)})")
    return refused


def _nulls(what: Application) -> list[RefusedRow]:
    """Rows with a NULL for another NOT NULL column. Sums and tombstones cannot have one."""
    others = [name for name in what.carried if name not in what.sink.key and name in what.target.columns]
    columns = [name for name in others if what.target.columns[name].not_null]
    if not columns or what.sink.mode == "add":
        return []
    condition = compose("{counts} AND ({nulls})", counts=what.no_tombstone, nulls=_is_null(columns))
    if what.sink.keep_unavailable:
        condition += compose(" AND {c} IS NULL", c=UNAVAILABLE)  # superseded: see `keep_values`
    return rows_where(what, condition, f"a NULL in one of {', '.join(columns)}, which the table declares NOT NULL")


def _repeats(what: Application) -> list[RefusedRow]:
    """Rows whose unique key the target or an earlier staged row has. A replay takes the place of its epoch's rows."""
    key = what.sink.key
    others: sql.Composable = sql.SQL("true")
    if what.epoch.replays is not None:
        others = compose("t._epoch IS DISTINCT FROM {replays}", replays=what.epoch.replays)
    e, s = names(STAGED_LINEAGE, "e"), names(STAGED_LINEAGE, "s")
    earlier: sql.Composable = compose("({e}) < ({s})", e=e, s=s)
    if what.sink.aggregated:
        earlier = sql.SQL("e.ctid < s.ctid")
    elif what.sink.key_is_place:
        earlier = sql.SQL("e.ctid <> s.ctid")
    condition = what.compose(
        "EXISTS (SELECT FROM {target} t WHERE {same_there} AND {others})"
        " OR EXISTS (SELECT FROM {staging} e WHERE {same_staged} AND {earlier})",
        same_there=same(key, "t", "s"), others=others, same_staged=same(key, "e", "s"), earlier=earlier,
    )  # fmt: skip
    return rows_where(what, condition, f"a repeat of its key ({', '.join(key)})")


def _refuse_unordered_keys(what: Application) -> None:
    """Refuse a key that occurs in two partitions without a declared order: offsets order one partition only."""
    if what.sink.aggregated:
        met_twice = bool(what.query("SELECT 1 FROM {staging} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"))
    else:
        others = {"d": what.deleted_keys} | ({"t": what.target.identifier} if what.kept_order else {})
        w, joins, met = names(("_topic", "_partition"), "w"), [], [compose("_epochline_several")]
        for row, table in others.items():
            on, there = same(what.sink.key, row, "w"), names(("_topic", "_partition"), row)
            joins.append(compose(" LEFT JOIN {table} {row} ON {on}", table=table, row=row, on=on))
            met.append(compose("({w}) <> ({there})", w=w, there=there))
        if what.kept_order and what.last_earlier_epoch:
            # Rows of an earlier generation are older than all rows of this one, in every partition.
            met[-1] += compose(" AND {ours}", ours=what.of_generation("t"))
        # One row per key: few keys are compared with the tables, however many rows have them.
        twice = (
            "SELECT 1 FROM (SELECT {key}, min(_topic) AS _topic, min(_partition) AS _partition,"
            " min(_topic) <> max(_topic) OR min(_partition) <> max(_partition) AS _epochline_several"
            " FROM {staging} GROUP BY {key}) w{joins} WHERE {met} LIMIT 1"
        )
        met_twice = bool(what.query(twice, joins=joined(joins, ""), met=joined(met, " OR ")))
    if met_twice:
        raise RowsRefusedError(
            f"{what.pipeline.name} ({what.staged.table}): a key of {what.sink} was met twice without an order between"
            " its records (in two partitions, or twice in aggregated rows). Declare order_by for this sink. Nothing was"
            " sealed."
        )


def _overflows(what: Application, measure: str) -> list[RefusedRow]:
    kind = parse_type(what.target.columns[measure].base)
    if kind.name in INTEGERS:
        low, high = _LIMITS[kind.name]
        limit = compose("NOT BETWEEN {low} AND {high}", low=low, high=high)
    elif kind.precision is not None:
        # The largest value has as many nines as the precision.
        largest = "(10::numeric ^ {precision} - 1) / 10::numeric ^ {scale}"
        limit = compose(f"NOT BETWEEN -({largest}) AND {largest}", precision=kind.precision, scale=kind.scale or 0)
    else:
        return []
    sums = what.compose("(SELECT {key}, sum({m}) AS _total FROM {staging} GROUP BY {key})", m=measure)
    condition = what.compose(
        "coalesce((SELECT t.{m} FROM {target} t WHERE {same}), 0)::numeric + s._total {limit}",
        m=measure, same=same(what.sink.key, "s", "t"), limit=limit,
    )  # fmt: skip
    return rows_where(what, condition, f"a sum of {measure} would not fit {kind}. Use a wider column", sums)
