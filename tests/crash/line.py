"""A pipeline whose runs are made as Airflow makes them, by the real use cases and the real writer, without Spark."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg2
import pyarrow as pa
from kafka import KafkaProducer

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from epochline.coordinator import Plan, PlanOutcome  # fmt: skip
from epochline.errors import EpochlineError
from epochline.kafka.source import KafkaOffsets
from epochline.ports import Ledger, OffsetSource
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import EpochState
from epochline.protocol.offsets import PlannedRange
from epochline.protocol.staging import StagingTicket
from epochline.sinks import sinks_by
from epochline.spark.part_rows import one_pass_writer
from epochline.spark.staging import StagingWriter
from tests.databases import BY_HAND
from tests.driver import Driver, epoch_of
from tests.integration.kafka_topics import make_topic
from tests.job import write_as_spark
from tests.reading import read_range
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.crash.reliability import Recovery

T = TypeVar("T")
Records = Mapping[int, Sequence[str | bytes]]
_numbers = itertools.count(1)

RETRY_DELAY = 0.3
"""Seconds between two tries of a task."""


class Line(Driver):
    """One pipeline from a topic of its own into two tables, and everything that was produced for it.

    ``via`` and ``kafka`` are other ways to the servers, such as through a proxy; ``partitions`` is 0 where topic and
    targets are there; the rest but ``configs``, of the topic, changes the declaration.
    """

    recovery: Recovery
    """The clock of the test; the fixtures that make pipelines set it."""
    search: timedelta | None = None
    """Time to look for records that staging refuses, for the next attempt to set aside."""

    def __init__(
        self, dsn: str, bootstrap: str, *, via: str | None = None, kafka: str | None = None, partitions: int = 2,
        lock_timeout: float = 5, name: str | None = None, configs: Mapping[str, str] | None = None, **changes: Any,
    ) -> None:  # fmt: skip
        self.dsn = dsn
        self.via = via or dsn
        self.bootstrap = bootstrap
        self._looking = threading.local()
        self.topic = name or f"line_{os.getpid()}_{next(_numbers)}"
        fields: dict[str, Any] = {
            "name": self.topic,
            "source": KafkaSource(topics=self.topic),
            "parse": Text(),
            "sinks": [PostgresTable(table=f"{self.topic}{end}", columns={"value": "text"}) for end in ("", "_again")],
            "bad_records": "quarantine",
            "lock_timeout": timedelta(seconds=lock_timeout),
        }
        self.pipeline = Pipeline(**{**fields, **changes})
        self.kafka = kafka or bootstrap
        brokers = {"bootstrap.servers": self.kafka}
        sink_factory = sinks_by(lambda _: brokers)
        self.ledger: Ledger = PostgresLedger(self.via, lock_timeout=lock_timeout, sink_factory=sink_factory)
        self.source: OffsetSource = KafkaOffsets(brokers)
        self.produced: dict[tuple[int, int], bytes] = {}
        """By partition and offset, every record that was acknowledged (and committed)."""
        self.runs = itertools.count(1)
        self.patience = 20.0
        """Seconds without a record after which a read gives up, as a consumer's poll does."""
        if partitions:
            make_topic(bootstrap, self.topic, partitions, **configs or {})
            self.create()

    def again(self, dsn: str | None = None, **options: Any) -> Line:
        other = Line(dsn or self.dsn, self.bootstrap, name=self.name, partitions=0, **options)
        other.produced = self.produced
        return other

    # Producing.

    def produce(self, records: Records, **options: Any) -> None:
        """Append records and remember what was acknowledged, with its offsets."""
        settings = {"bootstrap_servers": self.bootstrap, "acks": "all", "enable_idempotence": True}
        with closing(KafkaProducer(**settings)) as producer:
            self.produced |= self.send(producer, records, **options)

    def send(self, producer: KafkaProducer, records: Records, **options: Any) -> dict[tuple[int, int], bytes]:
        """Send with a producer; by partition and offset what was acknowledged."""
        values = [(p, v if isinstance(v, bytes) else v.encode()) for p, some in records.items() for v in some]
        sent = [(p, v, producer.send(self.topic, value=v, partition=p, **options)) for p, v in values]
        producer.flush()
        return {(p, future.get(30).offset): value for p, value, future in sent}

    def some(self, count: int = 20, what: str = "record") -> None:
        """``count`` records in each partition, and one that no text column takes."""
        partitions = sorted({p for p, _ in self.produced} | {0, 1})
        records: dict[int, list[str | bytes]] = {p: [f"{what} {p}-{i}" for i in range(count)] for p in partitions}
        records[0].append(b"\xff not UTF-8")
        self.produce(records)

    # The tasks of a run.

    def writer(self, ticket: StagingTicket) -> StagingWriter:
        """The writer that Spark would pickle and send to its executors.

        It writes the records as they are. `SharedTopic` writes what a transform or windows make of them.
        """
        spec = self.pipeline.model_copy(update={"transform": None, "state": (), "windows": None}).spec
        return one_pass_writer(spec, ticket, self.via, search=self.search)

    def stage(self, planned: Plan, ticket: StagingTicket) -> None:
        self.stage_parts(map(self.read, planned.ranges), ticket)

    def stage_parts(self, parts: Iterable[Iterator[pa.RecordBatch]], ticket: StagingTicket) -> None:
        write_as_spark(self.writer(ticket), parts)

    def read(self, planned: PlannedRange, batch: int = 8) -> Iterator[pa.RecordBatch]:
        """The committed records of a range, in small batches."""
        return read_range(self.kafka, planned, batch=batch, patience=self.patience)

    def run(self, who: str | None = None, *, tries: int = 3) -> str:
        """A whole run as the DAG makes it: each task tried again where that helps, the teardown at the end.

        Returns:
            ``success``, ``skipped`` or ``failed``, as Airflow would show the run.
        """
        who = who or f"run-{next(self.runs)}"
        epoch_id = None
        try:
            planned = tried(lambda: self.plan(who), tries)
            if planned.epoch is None or planned.outcome is PlanOutcome.NOTHING_TO_READ:
                # A run without an epoch shows what an earlier one left.
                tried(self.publish, tries)
                return "skipped"
            epoch_id = epoch_of(planned).epoch_id
            tried(lambda: self.pre_commit(planned, who), tries)
            tried(lambda: self.commit(planned), tries)
            tried(self.publish, tries)
        except Exception:  # whatever fails a task fails the run
            if epoch_id is not None:
                with suppress(EpochlineError):  # a teardown may fail as well; the next plan settles what is left
                    tried(lambda: self.abort(epoch_id, who, reason=f"teardown of {who}"), tries)
            return "failed"
        return "success"

    # Looking.

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        for again in (False, True):
            if again or not hasattr(self._looking, "session"):
                self._looking.session = psycopg2.connect(self.dsn)
                self._looking.session.autocommit = True
                self._looking.session.cursor().execute(BY_HAND)
            try:
                with self._looking.session.cursor() as cursor:
                    cursor.execute(text, values or None)
                    return cursor.fetchall() if cursor.description else []
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                if again or not self._looking.session.closed:
                    raise
        raise AssertionError("unreachable")

    def state(self, epoch_id: int = 1) -> EpochState:
        """The state of an epoch as everybody sees it, also while somebody holds its row."""
        asked = "SELECT state FROM epochline.epochs WHERE pipeline = %s AND epoch_id = %s"
        return EpochState(self.query(asked, self.name, epoch_id)[0][0])

    def rows(self) -> list[tuple[int, int]]:
        """How many rows both targets hold, seen in one snapshot."""
        return self.query(f"SELECT (SELECT count(*) FROM {self.name}), (SELECT count(*) FROM {self.name}_again)")

    def heads(self) -> dict[int, int]:
        return dict(self.query("SELECT partition, next_offset FROM epochline.heads WHERE pipeline = %s", self.name))

    def until_a_session_waits_for_a_lock(self) -> None:
        asked = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            " AND cardinality(pg_blocking_pids(pid)) > 0"
        )
        wait_for("a session waits for another's lock", lambda: self.query(asked))


def in_background(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def tried(task: Callable[[], T], tries: int) -> T:
    """Call a task as Airflow does: again after an error, unless the error says that it does not help."""
    for left in reversed(range(tries)):
        try:
            return task()
        except Exception as error:
            if not left or (isinstance(error, EpochlineError) and not error.retryable):
                raise
        time.sleep(RETRY_DELAY)
    raise AssertionError("unreachable")
