"""The records that an aggregate, or a row without lineage, was made of: read again by the declaration's own parse.

The parsed values are compared with the row's key inside PostgreSQL, in the types of the target, as in an audit.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg2 import sql

from epochline.audit.session import AuditSession
from epochline.declare.columns import STAGED_LINEAGE, parse_type
from epochline.declare.pipeline import Pipeline
from epochline.postgres.queries.statements import change, compose, defined_columns, joined, names, query
from epochline.postgres.targets.columns import TargetColumn
from epochline.protocol.why import Record, RowOrigin

PARSED = "parsed records"
"""The name of the parsed rows among the sinks that `epochline.audit.reading.RangeReader` fills."""

_BATCH = sql.Identifier("pg_temp", "why_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Records of a key, the newest first, each with its epoch; how many others there are, and what was not read."""

    records: Sequence[tuple[int, Record]]
    more: int
    notes: Sequence[str]


def cannot_match(declared: Pipeline, origin: RowOrigin) -> str | None:
    """Why the records of a row cannot be told from others of its ranges; None if they can."""
    if len(declared.inputs) > 1:
        return "several sources make the row"
    missing = [name for name in matched_columns(origin) if name not in declared.parsed_columns]
    if missing:
        return f"{', '.join(missing)} is no column of the record, so that records cannot be told by the row's key"
    return None


def matched_columns(origin: RowOrigin) -> list[str]:
    """The columns of the row's key that its records share; a window's bounds are compared with their times."""
    return [name for name in origin.key if origin.window is None or name not in ("window_start", "window_end")]


class MatchingRecords:
    """Takes parsed rows as `ExpectedRows` of an audit does, and keeps the newest places of those with the row's key.

    Each call of `add` is one transaction, in a temporary table.
    """

    sinks = frozenset({PARSED})

    def __init__(
        self, connection: AuditSession, declared: Pipeline, origin: RowOrigin, target: Mapping[str, TargetColumn],
        most: int,
    ) -> None:  # fmt: skip
        self._connection, self._most = connection, most
        parsed, windows = declared.parsed_columns, declared.windowing
        keys = matched_columns(origin)
        time = [] if origin.window is None or windows is None else [windows.time.column]
        kinds = {name: "text" if parse_type(parsed[name]).by_text else parsed[name] for name in (*keys, *time)}
        self._columns = {**kinds, **STAGED_LINEAGE}
        self._fits = joined([*self._conditions(keys, target, origin), *self._in_window(time, origin)], " AND ")
        self._newest: list[tuple[int, int, int, int, Record]] = []
        self.total = 0

    @staticmethod
    def _conditions(
        keys: Sequence[str], target: Mapping[str, TargetColumn], origin: RowOrigin
    ) -> Iterator[sql.Composable]:
        yield sql.SQL("true")
        for name in keys:
            parts = {"column": name, "kind": sql.SQL(target[name].kind), "value": sql.Literal(origin.key[name])}
            same = "CAST({column} AS {kind}) = CAST({value} AS {kind})"
            yield compose("{column} IS NULL" if origin.key[name] is None else same, **parts)

    @staticmethod
    def _in_window(time: Sequence[str], origin: RowOrigin) -> Iterator[sql.Composable]:
        for name in time:
            start, end = (sql.Literal(bound) for bound in origin.window or ())
            yield compose(
                "{time} >= CAST({start} AS timestamptz) AND {time} < CAST({end} AS timestamptz)",
                time=name, start=start, end=end,
            )  # fmt: skip

    def prepare(self) -> None:
        """Create the temporary table."""
        with self._connection.snapshot():
            change(self._connection, "DROP TABLE IF EXISTS {batch}", batch=_BATCH)
            columns = defined_columns(self._columns)
            change(self._connection, "CREATE TEMP TABLE why_batch ({columns})", columns=columns)

    def add(self, sink: str, epoch_id: int, rows: pa.RecordBatch) -> None:
        """Count and keep the records of a batch that have the key. Epochs come in any order."""
        if not rows.num_rows:
            return
        with self._connection.snapshot() as session:
            session.copy_rows(_BATCH, self._columns, rows)
            found = query(
                self._connection, "SELECT {place} FROM {batch} WHERE {fits}", place=names(STAGED_LINEAGE), batch=_BATCH,
                fits=self._fits,
            )  # fmt: skip
            change(self._connection, "TRUNCATE {batch}", batch=_BATCH)
        self.total += len(found)
        places = [
            (epoch_id, offset, partition, row, Record(topic=topic, partition=partition, offset=offset, row=row))
            for topic, partition, offset, row in found
        ]
        self._newest = heapq.nlargest(self._most, [*self._newest, *places], key=lambda one: one[:4])

    def set_aside(self, epoch_id: int, records: pa.RecordBatch) -> None:
        """Records in the quarantine are in no row."""

    def leave_out(self, topic: str, partition: int, first: int, until: int) -> None:
        """What cannot be read any more is in the notes of `RangeReader.read`."""

    def matched(self, notes: Sequence[str]) -> Matched:
        """What was found."""
        records = [(epoch_id, record) for epoch_id, *_, record in self._newest]
        return Matched(records=records, more=self.total - len(records), notes=tuple(dict.fromkeys(notes)))
