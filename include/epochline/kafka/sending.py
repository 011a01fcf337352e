"""Send records to a topic: in one Kafka transaction with their marker, or without transactions, at least once."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import SinkError, SinkUnavailableError
from epochline.failpoints import failpoint
from epochline.kafka.client import Reports, call_in_turns, new_producer, partitions_of

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0
_ABORT_SECONDS = 10.0
_TURN_SECONDS = 1.0
_POLL_EVERY = 1_000
_CHOSEN_BY_KEY = -1
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send. Without a partition, the key chooses one, as in Kafka's Java producer."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    topic: str | None = None
    """One of the sender's other topics; None: its first one."""


class TransactionalSender:
    """Sends batches of records, each in one transaction: all of a batch becomes visible, or nothing (P9, P12).

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
        transactional_id: a later sender with the same id ends this one when it calls `fence`.
        timeout: Kafka's ``transaction.timeout.ms``: the brokers abort a transaction that takes longer.

    Raises:
        SinkError: librdkafka refuses a property of the connection.
    """

    def __init__(self, settings: Mapping[str, str], transactional_id: str, timeout: timedelta) -> None:
        self._id = transactional_id
        self._timeout = timeout.total_seconds()
        self._reports = Reports(settings)
        properties = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(self._timeout * 1000),
        }
        self._producer = new_producer(settings, self._reports, properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _discard(self._producer)
        # librdkafka ends its threads and connections when the object goes, although a caller may keep this sender.
        del self._producer

    def fence(self) -> None:
        """End every earlier sender of this transactional id, and abort its open transaction (P13).

        Call it once, before the first `send`. On return, every transaction of the id is committed or aborted.

        Raises:
            SinkUnavailableError: Kafka does not answer, or another process took over meanwhile.
            SinkError: Kafka refuses.
        """
        failpoint("topic.fence")
        call_in_turns(
            self._producer.init_transactions,
            self._producer,
            self._reports,
            f"taking over the transactional id {self._id}",
            _PATIENCE_SECONDS,
        )
        failpoint("topic.fenced")

    def send(
        self, topic: str, records: Iterable[Outgoing], marker_key: bytes, marker: bytes, others: Sequence[str] = ()
    ) -> int:
        """Send records to a topic and to others, and their marker to the control topic, in one transaction.

        Returns the number of records, without the marker.

        An error before the commit leaves nothing visible. If the commit is not answered, its outcome is unknown:
        call `epochline.kafka.markers.last_marker` after a new sender's `fence` to find out.

        Raises:
            SinkUnavailableError: Kafka does not answer, the time-out passed, or another process took over.
            SinkError: Kafka refuses a record, the topic or the commit.
        """
        doing = f"sending to {topic} as {self._id}"
        partitions = _known_partitions(self._producer, self._reports, [topic, *others])
        deadline = time.monotonic() + self._timeout
        failpoint("topic.begin")
        with self._reports.explaining(doing):
            self._producer.begin_transaction()
        try:
            queue = _Queue(self._producer, self._reports, doing, deadline)
            sent = queue.put_all(topic, records, partitions)
            failpoint("topic.marker")
            queue.put(CONTROL_TOPIC, Outgoing(key=marker_key, value=marker, partition=0))
            queue.settle()
            failpoint("topic.commit")
        except BaseException:
            self._abort()
            raise
        self._commit(doing, deadline)
        failpoint("topic.committed")
        return sent

    def _commit(self, doing: str, deadline: float) -> None:
        try:
            # At least one turn: librdkafka takes a negative time-out as no limit.
            self._producer.commit_transaction(max(deadline - time.monotonic(), _TURN_SECONDS))
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            # The transaction is known not to be committed only if librdkafka demands an abort and the abort succeeded.
            if reason.txn_requires_abort() and self._abort():
                raise self._reports.explained(reason, doing) from error
            explained = self._reports.explained(reason, f"the commit of {doing}")
            raise SinkUnavailableError(
                f"{explained} The commit of the transaction began, and its outcome is not known; the marker settles it."
            ) from error

    def _abort(self) -> bool:
        """Returns whether the brokers confirmed the abort. If not, the next `fence` or the time-out aborts."""
        try:
            self._producer.abort_transaction(min(_ABORT_SECONDS, self._timeout))
        except KafkaException as error:
            log.warning("topic.abort_unanswered transactional_id=%s reason=%s", self._id, error.args[0].str())
            return False
        return True


def send_plainly(
    settings: Mapping[str, str], topic: str, records: Iterable[Outgoing], others: Sequence[str] = ()
) -> int:
    """Send records without a transaction; each becomes visible at once.

    A repeat sends them again: a topic with ``semantics="at_least_once"`` gives up INV-5. Returns the number of records.

    Raises:
        SinkUnavailableError: Kafka does not answer.
        SinkError: Kafka refuses a record or the topic.
    """
    reports = Reports(settings)
    producer = new_producer(settings, reports, {})
    try:
        partitions = _known_partitions(producer, reports, [topic, *others])
        queue = _Queue(producer, reports, f"sending to {topic}")
        sent = queue.put_all(topic, records, partitions)
        queue.settle()
        failpoint("topic.sent")
    finally:
        _discard(producer)
    return sent


class _Queue:
    """Hands records to librdkafka and counts those that are stored.

    Args:
        deadline: when the brokers abort the transaction. Without it, only librdkafka's time-out per record applies.
    """

    def __init__(self, producer: Producer, reports: Reports, doing: str, deadline: float | None = None) -> None:
        self._producer = producer
        self._reports = reports
        self._doing = doing
        self._deadline = deadline
        self._put = 0
        self._stored = 0
        self._failed: KafkaError | None = None

    def put_all(self, topic: str, records: Iterable[Outgoing], partitions: Mapping[str, int]) -> int:
        for number, record in enumerate(records):
            failpoint("topic.record")
            name = record.topic or topic
            if name not in partitions:
                raise SinkError(f"{self._doing}: record {number} is for an undeclared topic. Restore the outbox.")
            if record.partition is not None and not 0 <= record.partition < partitions[name]:
                raise SinkError(
                    f"{self._doing}: record {number} is for partition {record.partition}, but {name} has"
                    f" {partitions[name]}, counted from 0. Correct the partition column, or add partitions."
                )
            self.put(name, record)
        return self._put

    def put(self, topic: str, record: Outgoing) -> None:
        """Hand over one record. Waits while the queue is full."""
        if self._put % _POLL_EVERY == 0:
            self._poll(0)
        while True:
            try:
                self._producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=_CHOSEN_BY_KEY if record.partition is None else record.partition,
                    headers=list(record.headers),
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._poll(_TURN_SECONDS)
                continue
            except (KafkaException, SystemError):  # SystemError: see `Reports.explaining`
                with self._explaining():
                    raise
            self._put += 1
            return

    def settle(self) -> None:
        """Wait until all replicas store every record; raises if a record failed."""
        while self._flush():
            self._poll(0)
        self._poll(0)
        if self._stored != self._put:
            raise SinkError(f"{self._doing}: {self._put} records were handed over, but {self._stored} are stored.")

    def _delivered(self, error: KafkaError | None, _record: Message) -> None:
        if error is None:
            self._stored += 1
        elif self._failed is None or self._failed.code() in _PURGED:
            # If one record fails, librdkafka purges the others. Keep the error of the one that failed.
            self._failed = error

    def _flush(self) -> int:
        """Wait for one turn. Returns how many records are still not stored."""
        with self._explaining():
            return self._producer.flush(_TURN_SECONDS)

    def _poll(self, seconds: float) -> None:
        with self._explaining():
            self._producer.poll(seconds)
        self._reports.check()
        if self._failed is not None:
            if self._failed.code() in _PURGED:
                # Wait for the report of the record that failed, which holds the reason.
                self._flush()
            with self._explaining():
                raise self._reports.explained(self._failed, self._doing)
        self._check_time()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Translate librdkafka's errors.

        After the transaction's time-out librdkafka fails with many different errors; `_check_time` replaces them.
        """
        try:
            with self._reports.explaining(self._doing):
                yield
        except SinkUnavailableError:
            self._check_time()
            raise

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise SinkUnavailableError(
                f"{self._doing} took longer than its transaction_timeout; {self._stored} of the {self._put} records"
                " handed over were stored, and the transaction is aborted. Raise the topic's transaction_timeout, which"
                " the next try uses. For later epochs you may also lower records_per_epoch."
            )


def _known_partitions(producer: Producer, reports: Reports, topics: Sequence[str]) -> dict[str, int]:
    known = {}
    # Before sending, because librdkafka waits for a missing topic as long as for a slow one.
    for topic in topics:
        partitions = partitions_of(producer, reports, topic, _PATIENCE_SECONDS)
        if partitions is None:
            raise SinkError(f"Kafka has no topic {topic}. Nothing was sent. Create it.")
        known[topic] = partitions
    return known


def _discard(producer: Producer) -> None:
    """Drop what is still in the queue: records that were not committed, or that were reported as failed."""
    # The producer's own close() would wait for the brokers to abort. No abort is due: after an error before the commit
    # `send` has aborted, and after a commit without an answer the marker tells the outcome.
    producer.purge()
    with suppress(KafkaException):
        producer.poll(0)
