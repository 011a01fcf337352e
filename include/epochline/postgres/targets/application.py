"""One sink's staging and its target, in the transaction that applies it; and what a target refuses, in words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg2
from psycopg2 import sql

from epochline.declare.columns import DELETED, STAGED_LINEAGE, UNAVAILABLE
from epochline.declare.names import deleted_keys_table, order_column
from epochline.declare.pipeline import Pipeline
from epochline.declare.table import PostgresTable
from epochline.errors import RowsRefusedError, SealRefusedError, TargetCodeError
from epochline.postgres.queries.statements import Connection, change, compose, joined, names, query, run, same
from epochline.postgres.targets.catalog import Target
from epochline.protocol.epoch import Epoch
from epochline.protocol.refused import MOST, RefusedRow
from epochline.protocol.staging import StagedTable

Result = TypeVar("Result")

PASSES = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE that are not caused by a row: sessions, locks, resources, cancelled statements."""

FATES = sql.Identifier("pg_temp", "epochline_fate")
NUMBER, FATE, TURN = "_epochline_number", "_epochline_fate", "_epochline_turn"
"""Columns of `FATES` beside the staged ones: the number of the row, what becomes of it, when it is written."""

_CODE = ("P0", "38", "39")
"""Classes of SQLSTATE that functions raise: PL/pgSQL, and routines in other languages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The staging of one sink, and the target to which it is applied."""

    connection: Connection
    epoch: Epoch
    pipeline: Pipeline
    sink: PostgresTable
    staged: StagedTable
    target: Target
    last_earlier_epoch: int = 0
    """Highest epoch id of earlier generations, or 0. The rows of those epochs have offsets of another log."""
    rows: sql.Identifier | None = None
    """A table or view with some of the staged rows; None for the whole staging table."""

    @property
    def staging(self) -> sql.Identifier:
        """The table or view with the staged rows, as a quoted identifier."""
        return self.rows or sql.Identifier("epochline_staging", self.staged.table)

    @property
    def deleted_keys(self) -> sql.Identifier:
        """The table of deleted keys, as a quoted identifier."""
        return sql.Identifier("epochline", deleted_keys_table(self.pipeline.name, self.sink.table))

    @property
    def order(self) -> list[str]:
        """Columns of staging that order the rows of a key."""
        return order_of(self.sink)

    @property
    def kept_order(self) -> list[str]:
        """The columns of the order that the target has: all, the declared ones, or none (a later epoch replaces).

        After a topic was adopted, positions can be compared only if the target has ``_epoch``.
        """
        return kept_order(self.sink, self.target, self.last_earlier_epoch)

    @property
    def carried(self) -> list[str]:
        """Columns that are copied from staging to the target under the same name."""
        copied = [name for name in self.staged.columns if name not in (DELETED, UNAVAILABLE)]
        return [name for name in copied if not name.startswith("_") or name in self.target.columns]

    @property
    def has_epoch(self) -> bool:
        """Whether the target's rows tell their epoch."""
        return "_epoch" in self.sink.carried_lineage

    @property
    def has_record(self) -> bool:
        """Whether each staged row belongs to one record. Rows of a transform and sums may come from several."""
        return not self.pipeline.is_transformed and STAGED_LINEAGE.keys() <= self.staged.columns.keys()

    @property
    def winners(self) -> sql.Composed:
        """Per key the row with the highest order, as a query.

        Without a declared order the seal has found each key in one partition alone, so that offsets order its rows.
        """
        key = names(self.sink.key)
        deciding = [name for name in self.order if self.sink.order_by or name not in ("_topic", "_partition")]
        order = joined([key, *(compose("{c} DESC", c=column) for column in deciding)])
        return compose(
            "SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {o}", key=key, staging=self.staging, o=order
        )

    @property
    def no_tombstone(self) -> sql.Composable:
        """The condition that a staged row ``s`` becomes a row of the target."""
        return self.compose("NOT s.{deleted}") if self.sink.mode == "upsert" else sql.SQL("true")

    def of_generation(self, row: str) -> sql.Composed:
        """The condition that the epoch's own generation wrote a row of the target."""
        epoch = sql.Identifier(row, "_epoch")
        return compose("coalesce({epoch}, 0) > {last}", epoch=epoch, last=self.last_earlier_epoch)

    def given(self, prefix: str) -> dict[str, sql.Composable]:
        """By column of the target, what the epoch writes there from a staged row: ``_epoch`` and time included."""
        values: dict[str, sql.Composable] = {name: sql.Identifier(prefix, name) for name in self.carried}
        if self.has_epoch:
            values["_epoch"] = sql.Literal(self.epoch.epoch_id)
        if self.sink.insert_time is not None:
            values[self.sink.insert_time] = sql.Literal(self.epoch.planned_at)
        return values

    def compose(self, text: str, /, **parts: object) -> sql.Composed:
        """A statement about both tables, or a piece of one.

        Its parts are ``staging``, ``target``, ``side`` (the table of deleted keys), ``key`` (its columns), ``same``
        (rows ``t`` and ``w`` have one key), ``winners``, ``deleted`` (the column), ``epoch`` (the id), ``fates`` with
        its columns ``number``, ``fate`` and ``turn``; and those given.
        """
        ours = {
            "staging": self.staging, "target": self.target.identifier, "side": self.deleted_keys,
            "key": names(self.sink.key), "same": same(self.sink.key, "t", "w"), "winners": self.winners,
            "deleted": DELETED, "epoch": self.epoch.epoch_id,
            "fates": FATES, "number": NUMBER, "fate": FATE, "turn": TURN,
        }  # fmt: skip
        return compose(text, **{**ours, **parts})

    def query(self, text: str, /, **parts: object) -> list[tuple[Any, ...]]:
        """The rows of a statement that `compose` makes."""
        return query(self.connection, self.compose(text, **parts))

    def number(self, text: str, /, **parts: object) -> int:
        """The first value of the first row, as a number."""
        return int(self.query(text, **parts)[0][0])

    def change(self, text: str, /, **parts: object) -> int:
        """The number of rows that a statement wrote."""
        return change(self.connection, self.compose(text, **parts))


def order_of(sink: PostgresTable) -> list[str]:
    """Columns that order the rows of one key (the highest row wins): the declared ones, then the record's position."""
    position = [] if sink.aggregated else [*STAGED_LINEAGE]
    return [*(order_column(name) for name in sink.order_by), *position]


def remembers_deleted(sink: PostgresTable) -> bool:
    """Whether a table keeps the deleted keys, so that an older row that arrives later does not bring one back."""
    return sink.mode == "upsert" and bool(order_of(sink))


def kept_order(sink: PostgresTable, target: Target, last_earlier_epoch: int) -> list[str]:
    """`Application.kept_order` for a sink without staging."""
    whole, declared = order_of(sink), [order_column(name) for name in sink.order_by]
    positions_compare = not last_earlier_epoch or "_epoch" in sink.carried_lineage
    for kept in (whole, declared) if positions_compare else (declared,):
        if all(name in target.columns for name in kept):
            return kept
    return []


def changed_rows(what: Application) -> tuple[int, int, int]:
    """The rows of the target that this transaction inserted, updated and deleted, as PostgreSQL counts them."""
    row = run(what.connection, "rows_changed_by_transaction", oid=what.target.oid).one()
    return row.inserted, row.updated, row.deleted


def attempt(
    connection: Connection, work: Callable[[], Result], *, keep: bool | Callable[[Result], bool] = True
) -> Result | psycopg2.Error:
    """The result of some work, whose changes stay if ``keep`` (of the result); or the error that rows or tables caused.

    Raises:
        psycopg2.Error: sessions, locks or resources caused the error.
    """
    change(connection, "SAVEPOINT attempt")
    done: Result | psycopg2.Error
    try:
        done = work()
    except psycopg2.Error as error:
        # Only an error that the rows or the table cause comes again at a repeat.
        if error.pgcode is None or error.pgcode.startswith(PASSES):
            raise
        done = error
    if isinstance(done, psycopg2.Error) or not (keep(done) if callable(keep) else keep):
        change(connection, "ROLLBACK TO SAVEPOINT attempt")
    change(connection, "RELEASE SAVEPOINT attempt")
    return done


def raised_by_code(error: psycopg2.Error) -> bool:
    """Whether a function of the target, such as a trigger's, raised the error: a repeat may go another way."""
    return (error.pgcode or "").startswith(_CODE) or "function " in (error.diag.context or "")


def refusal_by(error: psycopg2.Error) -> type[SealRefusedError]:
    """The class of the refusal that an error of the target causes."""
    return TargetCodeError if raised_by_code(error) else RowsRefusedError


def error_in_words(error: psycopg2.Error) -> tuple[str, str]:
    """An error as text for logs and as text for the ledger. The text for logs contains no values of rows."""
    primary = error.diag.message_primary or type(error).__name__
    rule = f" ({error.diag.constraint_name})" if error.diag.constraint_name else ""
    rule += "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    without_values = type(error).__name__ if isinstance(error, psycopg2.DataError) else primary
    return without_values + rule, primary + rule


def rows_where(
    what: Application, condition: sql.Composable, said: str, source: sql.Composable | None = None
) -> list[RefusedRow]:
    """The staged rows ``s`` that meet a condition, as refused rows; only the first if rows have no record."""
    rows = what.query(
        "SELECT {shown} FROM {rows} s WHERE {condition} LIMIT {most}",
        shown=shown(what), rows=source or what.staging, condition=condition, most=MOST if what.has_record else 1,
    )  # fmt: skip
    return [refused_row(what, said, f"{what.sink}: {said}", *row) for row in rows]


def shown(what: Application) -> sql.Composable:
    """What identifies a staged row ``s``: topic, partition and offset of its record, or the row itself as JSON."""
    if what.has_record:
        return compose("{place}, NULL", place=names(("_topic", "_partition", "_offset"), "s"))
    return sql.SQL("NULL, NULL, NULL, to_jsonb(s)::text")


def refused_row(
    what: Application, said: str, reason: str, topic: str | None, partition: int, offset: int, row: str | None
) -> RefusedRow:
    """A refused row of a target from the columns of `shown`."""
    place = None if topic is None else (topic, partition, offset)
    return RefusedRow(sink=what.sink.table, said=said, reason=reason, place=place, row=row)
