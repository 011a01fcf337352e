"""Applies the records of an epoch to its targets in pieces: what fits stays, and records that do not fit are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import psycopg2
from psycopg2 import sql

from epochline.postgres.queries.statements import Connection, change, names, query
from epochline.postgres.targets.application import Application, attempt, error_in_words, raised_by_code
from epochline.postgres.targets.together import apply_together
from epochline.protocol.refused import Search

_FOREIGN_KEY = "23503"
_TAKEN = ("23505", "23P01")
"""A unique index, an exclusion constraint."""

_FIRST, _LAST = "epochline.trial_first", "epochline.trial_last"
"""Settings of the transaction: numbers of the first and the last record that are tried now."""

_PIECE = 1024
"""Most records that are tried at once: what is tried again after a refusal must stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedTable:
    """One target of the trial, four times: with temporary tables of its staged rows, which are numbered by record."""

    what: Application
    """With the rows that are left."""
    newest: Application
    """With the newest rows of each key."""
    older: Application
    """With rows of keys whose newer row does not fit."""
    chunk: Application
    """With those that are tried now."""

    @classmethod
    def of(cls, what: Application, at: int) -> TriedTable:
        """The ``at``-th target of a trial."""
        rows, newest, older, chunk = (
            replace(what, rows=sql.Identifier("pg_temp", f"epochline_trial_{at}_{part}"))
            for part in ("rows", "newest", "older", "chunk")
        )
        if what.sink.mode == "replace":
            # The rows that are replaced go once: a chunk must not delete the rows of the chunk before it.
            chunk = replace(chunk, sink=what.sink.model_copy(update={"mode": "append"}))
        return cls(what=rows, newest=newest, older=older, chunk=chunk)


Group = tuple[TriedTable, ...]
"""Targets whose rows are tried together: those with records, or one whose rows belong to no single record."""


class Waits(IntEnum):
    """What another record may do so that a record fits. Where all wait, the lowest are blamed first."""

    NOTHING = 0
    VALUE = 1
    """Give a value up."""
    CODE = 2
    """Satisfy a deferred trigger."""
    PARENT = 3
    """Write the row that a foreign key refers to. An older row may be that, once a newer one is blamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A record, or a row without one, that does not fit those before it."""

    group: int
    number: int
    table: TriedTable
    said: str
    reason: str
    waits: Waits
    """For what another record may do."""
    raised: bool = False


class Pieces:
    """The records of an epoch, tried piece by piece in the transaction of a trial."""

    def __init__(self, connection: Connection, groups: Sequence[Group], search: Search) -> None:
        self._connection, self._groups, self._search = connection, groups, search
        self._notes: dict[str | None, str] = {}
        """By constraint, why rows that exchange its values cannot be written."""
        [(self._has_partitions,)] = query(
            connection,
            "SELECT bool_or(relispartition OR relkind = 'p') FROM pg_catalog.pg_class WHERE oid = ANY ({oids}::oid[])",
            oids=[table.what.target.oid for group in groups for table in group],
        )

    def make_view(self, table: TriedTable) -> None:
        """Make the view of the rows that are tried now, by settings: making it for each try would take longer."""
        table.newest.change(
            "CREATE TEMPORARY VIEW {chunk} AS SELECT {columns} FROM {staging} WHERE {number} BETWEEN"
            " current_setting({first})::bigint AND current_setting({last})::bigint",
            chunk=table.chunk.staging.strings[-1], columns=names(table.chunk.staged.columns),
            first=sql.Literal(_FIRST), last=sql.Literal(_LAST),
        )  # fmt: skip

    def unfit(
        self, group: int, numbers: Sequence[int], blamed: Sequence[Unfit], *, at_once: bool = False
    ) -> Iterator[Unfit]:
        """Apply records of a group in pieces, and a piece that does not fit in halves; what fits stays applied.

        Args:
            group: number of the group.
            numbers: of the records, in their order.
            blamed: what the search has found; it ends where the search goes on no longer.
            at_once: whether the records probably fit, so that all of them are the first piece.

        Yields:
            Records that do not fit those before them.
        """
        checked = 0
        size = max(len(numbers), 1) if at_once else _PIECE
        pieces = [numbers[at : at + size] for at in range(0, len(numbers), size)]
        left: list[tuple[Sequence[int], Sequence[int]]] = [(piece, ()) for piece in reversed(pieces)]
        while left and self._search.goes_on(len(blamed), checked, len(numbers)):
            tried, rest = left.pop()
            refused = self._refused(group, tried)
            if refused is None:
                # What did not fit together with these rows is the rest.
                left += [_halves(rest)] if rest else []
                checked += len(tried)
                continue
            left += [(rest, ())] if rest else []
            if len(tried) == 1:
                checked += 1
                yield refused
            else:
                left.append(_halves(tried))

    def takes_nothing(self, group: int) -> bool:
        """Whether targets take no rows at all: what a trigger for each statement refuses says nothing of any row."""
        return self._refused(group, [0]) is None

    def _refused(self, group: int, numbers: Sequence[int]) -> Unfit | None:
        """Apply the records of these numbers; the last of them if they do not fit, and then none is applied."""
        tables = self._groups[group]
        bounds = map(sql.Literal, (_FIRST, str(numbers[0]), _LAST, str(numbers[-1])))
        query(self._connection, sql.SQL("SELECT set_config({}, {}, true), set_config({}, {}, true)").format(*bounds))
        at: list[Application | None] = []

        def apply() -> None:
            # The piece before has compared the constraints of all tables, also of those that only triggers write.
            change(self._connection, "SET CONSTRAINTS ALL DEFERRED")
            apply_together(self._connection, [table.chunk for table in tables], at.append)
            at.append(None)
            change(self._connection, "SET CONSTRAINTS ALL IMMEDIATE")

        error = attempt(self._connection, apply)
        if not isinstance(error, psycopg2.Error):
            return None
        rule = error.diag.constraint_name
        notes = getattr(error, "__notes__", ())
        if notes:
            self._notes[rule] = notes[-1]
        elif rule in self._notes:
            error.add_note(self._notes[rule])
        log_text, reason = error_in_words(error)
        # The table that was written, or the one that a constraint compared later names.
        place = (error.diag.schema_name, error.diag.table_name) if at[-1] is None else at[-1].target.place
        table = next((table for table in tables if table.what.target.place == place), tables[0])
        return Unfit(
            group=group, number=numbers[-1], table=table, said=log_text, reason=reason, raised=raised_by_code(error),
            waits=self._waits(tables, error, deferred=at[-1] is None),
        )  # fmt: skip

    def _waits(self, group: Group, error: psycopg2.Error, *, deferred: bool) -> Waits:
        if raised_by_code(error):
            return Waits.CODE if deferred else Waits.NOTHING
        changed = any(table.what.target.is_changed_by_others for table in group)
        if error.pgcode in _TAKEN:
            may = changed or any(table.what.sink.mode == "upsert" for table in group)
            return Waits.VALUE if may else Waits.NOTHING
        if error.pgcode != _FOREIGN_KEY:
            return Waits.NOTHING
        # A foreign key may name a partition, or the table of which a target is one.
        targets = [table.what.target for tables in self._groups for table in tables]
        parents = {
            key.parent
            for target in targets
            for key in target.foreign_keys
            if key.name == error.diag.constraint_name and key.child == (error.diag.schema_name, error.diag.table_name)
        }
        ours = not parents or not parents.isdisjoint(target.place for target in targets)
        return Waits.PARENT if changed or self._has_partitions or ours else Waits.NOTHING


def _halves(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = (len(numbers) + 1) // 2
    return numbers[:middle], numbers[middle:]
