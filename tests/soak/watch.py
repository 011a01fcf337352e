"""What must hold: in every snapshot while the soak runs, and record for record at its end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from psycopg2 import sql

from epochline.offsets import chain_breaks

_LINKS = "SELECT partition, start_offset, until_offset FROM epochline.committed_range WHERE pipeline = %s"


def look(cursor: Any, pipeline: str) -> list[str]:
    """What is wrong in one snapshot: chain, one unfinished epoch, both tables and the ledger at one moment."""
    wrong = []
    cursor.execute(_LINKS, (pipeline,))
    chains: dict[int, list[tuple[int | None, int]]] = {}
    for partition, start, until in cursor.fetchall():
        chains.setdefault(partition, []).append((start, until))
    for partition, links in chains.items():
        wrong += [f"{pipeline}-{partition}: {one}" for one in chain_breaks(links)]
    committed = sum(until - start for links in chains.values() for start, until in links if start is not None)
    for table in (pipeline, f"{pipeline}_again"):
        cursor.execute(
            sql.SQL("SELECT count(*), count(DISTINCT (_partition, _offset)) FROM {}").format(sql.Identifier(table))
        )
        rows, records = cursor.fetchone()
        if rows != committed or records != committed:
            wrong.append(f"{table}: {rows} rows of {records} records, but {committed} offsets are committed")
    cursor.execute(
        "SELECT count(*) FROM epochline.epoch WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED')",
        (pipeline,),
    )
    if cursor.fetchone()[0] > 1:
        wrong.append(f"{pipeline}: more than one unfinished epoch")
    return wrong


@dataclass
class Watch:
    """A reader that takes a snapshot again and again while everything else breaks."""

    dsn: str
    pipelines: Sequence[str]
    snapshots: int = 0
    wrong: list[str] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.25):
            try:
                connection = psycopg2.connect(self.dsn, connect_timeout=5, application_name="soak watch")
            except psycopg2.OperationalError:
                continue
            try:
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                while not self._done.wait(0.25):
                    with connection, connection.cursor() as cursor:
                        for pipeline in self.pipelines:
                            self.wrong += look(cursor, pipeline)
                    self.snapshots += 1
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                continue
            finally:
                connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """One target table against the log: how many records there are, how many rows lack or repeat one, or differ."""

    table: str
    records: int
    missing: int
    duplicates: int
    strangers: int

    @property
    def exact(self) -> bool:
        """Nothing missing, nothing twice, nothing that was not produced."""
        return not (self.missing or self.duplicates or self.strangers)


def compare(dsn: str, bootstrap: str, pipeline: str, partitions: int) -> list[Exactness]:
    """Read the whole log, read_committed, and hold both tables against it, record for record."""
    log = _log(bootstrap, pipeline, partitions)
    found = []
    connection = psycopg2.connect(dsn)
    try:
        for table in (pipeline, f"{pipeline}_again"):
            with connection, connection.cursor() as cursor:
                cursor.execute(sql.SQL("SELECT _partition, _offset, value FROM {}").format(sql.Identifier(table)))
                rows = Counter(cursor.fetchall())
            found.append(
                Exactness(
                    table=table,
                    records=len(log),
                    missing=sum(1 for record in log if record not in rows),
                    duplicates=sum(times - 1 for times in rows.values()),
                    strangers=sum(1 for row in rows if row not in log),
                )
            )
    finally:
        connection.close()
    return found


def _log(bootstrap: str, topic: str, partitions: int) -> set[tuple[int, int, str]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None)
    keys = [KafkaPartition(topic, p) for p in range(partitions)]
    try:
        consumer.assign(keys)
        consumer.seek_to_beginning(*keys)
        ends = consumer.end_offsets(keys)
        records = set()
        deadline = time.monotonic() + 120
        while any(consumer.position(key) < ends[key] for key in keys):
            for some in consumer.poll(500).values():
                records |= {(record.partition, record.offset, record.value.decode()) for record in some}
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read to its end within 120 s")
        return records
    finally:
        consumer.close()
