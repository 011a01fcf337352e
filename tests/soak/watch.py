"""What must hold: in every snapshot while the soak runs, and record for record at its end."""

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2 import sql

from epochline.declare.names import QUARANTINE
from tests.chains import chain_breaks
from tests.databases import query
from tests.integration.kafka_topics import read_topic
from tests.soak.pipelines import declared, topic_of

_COUNTS = """
SELECT e.epoch_id, e.records_read, e.records_passed + e.records_skipped + e.records_quarantined, e.rows_written,
       (SELECT sum(rows) FROM epochline.manifest m WHERE m.attempt_id = a.attempt_id AND sink <> {quarantine}),
       (SELECT sum(rows) FROM epochline.part p WHERE p.attempt_id = a.attempt_id AND sink <> {quarantine}),
       (SELECT sum(r.records_read) FROM epochline.planned_range r
        WHERE r.pipeline = e.pipeline AND r.epoch_id = e.epoch_id),
       (SELECT count(*) FROM {table} WHERE _epoch = e.epoch_id) + (SELECT count(*) FROM {again} WHERE _epoch = e.epoch_id)
       + (SELECT sum(rows) FROM epochline.receipt r
          WHERE r.pipeline = e.pipeline AND r.epoch_id = e.epoch_id AND r.sink = {topic})
FROM epochline.epoch e JOIN epochline.attempt a USING (pipeline, epoch_id, attempt)
WHERE e.pipeline = {pipeline} AND e.state = 'COMMITTED' AND e.epoch_id > {after} ORDER BY e.epoch_id
"""
_LEFT = """
SELECT s.table_name, e.epoch_id FROM epochline.staging s JOIN epochline.attempt a USING (attempt_id)
JOIN epochline.epoch e USING (pipeline, epoch_id)
WHERE s.dropped_at IS NULL AND e.pipeline = %s AND e.state = 'COMMITTED' AND a.attempt = e.attempt
"""
_LINKS = "SELECT partition, start_offset, until_offset FROM epochline.committed_range WHERE pipeline = %s"
_UNFINISHED = "SELECT epoch_id FROM epochline.epoch WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED')"
_RECEIPTS = """
SELECT epoch_id, rows, shown_at IS NOT NULL FROM epochline.receipt WHERE pipeline = %s AND sink = %s ORDER BY epoch_id
"""
LEFT_OVER = """
SELECT 'staging table ' || tablename FROM pg_tables WHERE schemaname = 'epochline_staging'
UNION ALL
SELECT 'epoch that a topic does not show ' || pipeline || ' ' || epoch_id
FROM epochline.receipt WHERE shown_at IS NULL
UNION ALL
SELECT 'staging in the ledger ' || table_name FROM epochline.staging WHERE dropped_at IS NULL
UNION ALL
SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
UNION ALL
SELECT 'epoch ' || pipeline || ' ' || epoch_id FROM epochline.epoch WHERE state IN ('PLANNED', 'PRE_COMMITTED')
UNION ALL
SELECT 'open transaction ' || application_name FROM pg_stat_activity WHERE application_name LIKE 'epochline%'
AND datname = current_database() AND xact_start < now() - interval '5 s'
"""
"""I6, once nothing is to be read any more: staging, prepared transactions, unfinished epochs, open transactions."""


def _ask(cursor: Any, question: str | sql.Composable, *values: str) -> list[tuple[Any, ...]]:
    cursor.execute(question, values or None)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def look(cursor: Any, pipeline: str, counted: int) -> tuple[list[str], int]:
    """What is wrong in one snapshot: chain, counts, one unfinished epoch, tables, outbox and ledger at one moment.

    Given and returned is also the last epoch whose counts were compared; a committed epoch does not change.
    """
    wrong, counted = _counts(cursor, pipeline, counted)
    for table, epoch_id in _ask(cursor, _LEFT, pipeline):
        wrong.append(f"{pipeline}: staging {table} of committed epoch {epoch_id} is left")
    chains: defaultdict[int, list[tuple[int | None, int]]] = defaultdict(list)
    for partition, start, until in _ask(cursor, _LINKS, pipeline):
        chains[partition].append((start, until))
    for partition, links in chains.items():
        wrong += [f"{pipeline}-{partition}: {one}" for one in chain_breaks(links)]
    committed = sum(until - start for links in chains.values() for start, until in links if start is not None)
    for table in (pipeline, f"{pipeline}_again"):
        question = sql.SQL("SELECT count(*), count(DISTINCT (_partition, _offset)) FROM {}")
        [(rows, records)] = _ask(cursor, question.format(sql.Identifier(table)))
        if rows != committed or records != committed:
            wrong.append(f"{table}: {rows} rows of {records} records, but {committed} offsets are committed")
    wrong += _due(cursor, pipeline)
    if len(_ask(cursor, _UNFINISHED, pipeline)) > 1:
        wrong.append(f"{pipeline}: more than one unfinished epoch")
    return wrong, counted


def _counts(cursor: Any, pipeline: str, counted: int) -> tuple[list[str], int]:
    """I4, of each committed epoch: records read = parsed, skipped or set aside; rows = manifests = parts = in targets."""
    question = sql.SQL(_COUNTS).format(
        quarantine=sql.Literal(QUARANTINE), pipeline=sql.Literal(pipeline), after=sql.Literal(counted),
        table=sql.Identifier(pipeline), again=sql.Identifier(f"{pipeline}_again"),
        topic=sql.Literal(f"kafka:{topic_of(pipeline)}"),
    )  # fmt: skip
    wrong = []
    for counted, read, balanced, written, of_manifests, of_parts, of_ranges, in_targets in _ask(cursor, question):
        if not (read == balanced == of_ranges and written == of_manifests == of_parts == in_targets):
            wrong.append(
                f"{pipeline} epoch {counted}: {read} records read, {of_ranges} by its ranges, {balanced} accounted for;"
                f" {written} rows written, {of_manifests} by manifests, {of_parts} by parts, {in_targets} in the targets"
            )
    return wrong, counted


def _due(cursor: Any, pipeline: str) -> list[str]:
    """The outbox holds the rows of the epochs whose receipt is open, and no others; newer ones are shown later."""
    (outbox,) = declared(pipeline).outboxes
    receipts = _ask(cursor, _RECEIPTS, pipeline, outbox.topic.name)
    by_epoch = sql.SQL("SELECT _epoch, count(*) FROM {} GROUP BY 1").format(sql.Identifier(*outbox.table.split(".")))
    waiting = dict(_ask(cursor, by_epoch))
    due = {epoch_id: rows for epoch_id, rows, shown in receipts if not shown and rows}
    wrong = [] if waiting == due else [f"{pipeline}: {waiting} rows by epoch are in the outbox, due are {due}"]
    shown = [one for _, _, one in receipts]
    if shown != sorted(shown, reverse=True):
        wrong.append(f"{pipeline}: the topic shows an epoch and not the one before it")
    return wrong


@dataclass(eq=False)
class Watch(threading.Thread):
    """A reader that takes a snapshot again and again while everything else breaks."""

    dsn: str
    pipelines: Sequence[str]
    snapshots: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._counted = dict.fromkeys(self.pipelines, 0)
        self._done = threading.Event()

    def stop(self) -> None:
        """Let the last snapshot end."""
        self._done.set()
        self.join()

    def run(self) -> None:
        try:
            self._until_done()
        except Exception as error:
            self.wrong.append(f"the watch ended: {type(error).__name__}: {error}")

    def _until_done(self) -> None:
        while not self._done.wait(0.25):
            try:
                connection = psycopg2.connect(self.dsn, connect_timeout=5, application_name="soak watch")
                with closing(connection):
                    connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                    while not self._done.wait(0.25):
                        with connection, connection.cursor() as cursor:
                            for pipeline in self.pipelines:
                                wrong, self._counted[pipeline] = look(cursor, pipeline, self._counted[pipeline])
                                self.wrong += wrong
                        self.snapshots += 1
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """A table or a topic against the log: how many records there are, how many are repeated, lacking or unknown."""

    name: str
    records: int
    duplicates: int
    missing: int
    strangers: int
    disordered: int = 0
    """Keys of a topic whose records came in another order than they have in the log."""
    hidden: int = 0
    """Records that only a topic's read_uncommitted consumer saw: of transactions that were aborted."""

    @property
    def exact(self) -> bool:
        return not (self.missing or self.duplicates or self.strangers or self.disordered)


def compare(dsn: str, bootstrap: str, pipeline: str) -> list[Exactness]:
    """Read the whole log, read_committed, and hold both tables against it, record for record."""
    log = log_of(bootstrap, pipeline)
    found = []
    for table in (pipeline, f"{pipeline}_again"):
        rows = Counter(query(dsn, sql.SQL("SELECT _partition, _offset, value FROM {}").format(sql.Identifier(table))))
        missing, strangers = len(log.difference(rows)), len(rows.keys() - log)
        found.append(
            Exactness(
                name=table, records=len(log), missing=missing, duplicates=rows.total() - len(rows), strangers=strangers
            )
        )
    return found


def log_of(bootstrap: str, topic: str) -> set[tuple[int, int, str]]:
    """Every record of a topic, read committed: partition, offset, value."""
    return {(record.partition, record.offset, record.value.decode()) for record in read_topic(bootstrap, topic)}
