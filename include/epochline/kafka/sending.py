"""Send records to a topic: in one Kafka transaction with their marker, or without transactions, at least once."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import SinkError, SinkUnavailableError
from epochline.failpoints import failpoint
from epochline.kafka.client import Reports, call_in_turns, new_producer, partitions_of
from epochline.kafka.outgoing import Outgoing

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 60.0
_ABORT_SECONDS = 10.0
_TURN_SECONDS = 1.0
_POLL_EVERY = 1_000
_CHOSEN_BY_KEY = -1
END_KEY = b"end"
"""The key of no marker."""
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class TransactionalSender:
    """Sends batches of records, each in one transaction: all of a batch becomes visible, or nothing.

    A later sender with the same transactional id ends this one when it calls `fence`. The brokers abort a transaction
    that takes longer than ``timeout``.
    """

    def __init__(self, settings: Mapping[str, str], transactional_id: str, timeout: timedelta) -> None:
        self._id = transactional_id
        self._timeout = timeout.total_seconds()
        self._reports = Reports(settings)
        properties = {"transactional.id": transactional_id, "transaction.timeout.ms": int(self._timeout * 1000)}
        self._producer = new_producer(settings, self._reports, properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        discard(self._producer)
        # librdkafka ends its threads and connections when the object goes, although a caller may keep this sender.
        del self._producer

    def fence(self) -> None:
        """End every earlier sender of this transactional id, and abort its open transaction.

        Call it once, before the first `send`. On return, every transaction of the id is committed or aborted.

        Raises:
            SinkUnavailableError: Kafka does not answer, or another process took over meanwhile.
            SinkError: Kafka refuses.
        """
        failpoint("topic.fence")
        call_in_turns(
            self._producer.init_transactions, self._producer, self._reports,
            f"taking over the transactional id {self._id}", _PATIENCE_SECONDS,
        )  # fmt: skip
        failpoint("topic.fenced")

    def mark_end(self) -> int:
        """Write a record to the end of the control topic, in a transaction that is aborted; returns its offset.

        If there is no such topic, returns -1.
        Every replica in sync has it. A leader that the network cut off before shows a log that ends before it.

        Raises:
            SinkUnavailableError, SinkError: as `send`. Nothing becomes visible.
        """
        doing = f"looking for the end of {CONTROL_TOPIC} as {self._id}"
        if partitions_of(self._producer, self._reports, CONTROL_TOPIC, _PATIENCE_SECONDS) is None:
            return -1
        failpoint("topic.end")
        with self._reports.explaining(doing):
            self._producer.begin_transaction()
        queue = RecordQueue(self._producer, self._reports, doing, time.monotonic() + self._timeout)
        try:
            failpoint("topic.end_record")
            queue.put(CONTROL_TOPIC, Outgoing(key=END_KEY, value=b""), 0)
            queue.settle()
        finally:
            is_aborted = self._abort()
        if not is_aborted:
            raise SinkUnavailableError(f"{doing}: Kafka did not answer. Nothing was sent.")
        return queue.offset

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
            queue = RecordQueue(self._producer, self._reports, doing, deadline)
            sent = queue.put_all(topic, records, partitions)
            failpoint("topic.marker")
            queue.put(CONTROL_TOPIC, Outgoing(key=marker_key, value=marker), 0)
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

    A repeat sends them again: a topic with ``semantics="at_least_once"`` gives up INV-5. Returns the last offset.
    Raises `SinkUnavailableError` if Kafka does not answer, `SinkError` if it refuses a record or the topic.
    """
    reports = Reports(settings)
    producer = new_producer(settings, reports, {})
    try:
        partitions = _known_partitions(producer, reports, [topic, *others])
        queue = RecordQueue(producer, reports, f"sending to {topic}")
        queue.put_all(topic, records, partitions)
        queue.settle()
        failpoint("topic.sent")
    finally:
        discard(producer)
    return queue.offset


class RecordQueue:
    """Hands records to librdkafka and counts those that are stored.

    The brokers abort the transaction at the ``deadline``. Without one, only librdkafka's time-out per record applies.
    """

    def __init__(self, producer: Producer, reports: Reports, doing: str, deadline: float | None = None) -> None:
        self._producer, self._reports, self._doing, self._deadline = producer, reports, doing, deadline
        self._handed_over = self._stored = 0
        self.offset = -1
        """Offset of the record that was stored last."""
        self._failed: KafkaError | None = None

    def put(self, topic: str, record: Outgoing, partition: int | None) -> None:
        """Hand over one record. Waits while the queue is full. Without a partition, the key chooses one."""
        if self._handed_over % _POLL_EVERY == 0:
            self.poll(0)
        while True:
            try:
                self._producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=_CHOSEN_BY_KEY if partition is None else partition,
                    headers=list(record.headers),
                    # The client takes a zero as the time now.
                    timestamp=record.timestamp_ms or 0,
                    on_delivery=partial(self._delivered, self._handed_over, len(record.value or b"")),
                )
            except BufferError:
                self.poll(_TURN_SECONDS)
                continue
            except (KafkaException, SystemError):  # SystemError: see `Reports.explaining`
                with self._explaining():
                    raise
            self._handed_over += 1
            return

    def put_all(self, topic: str, records: Iterable[Outgoing], partitions: Mapping[str, int]) -> int:
        """Hand over records for a topic, or the topic that they name, after a check of both; returns their number."""
        number = 0
        for number, record in enumerate(records, 1):
            failpoint("topic.record")
            name = record.topic or topic
            if name not in partitions:
                raise SinkError(f"{self._doing}: record {number - 1} is for an undeclared topic. Restore the outbox.")
            if record.partition is not None and not 0 <= record.partition < partitions[name]:
                raise SinkError(
                    f"{self._doing}: record {number - 1} is for partition {record.partition}, but {name} has"
                    f" {partitions[name]}, counted from 0. Correct the partition column, or add partitions."
                )
            self.put(name, record, record.partition)
        return number

    def settle(self) -> None:
        """Wait until all replicas store every record; raises if a record failed."""
        while self._flush():
            self.poll(0)
        self.poll(0)
        if self._stored != self._handed_over:
            raise SinkError(
                f"{self._doing}: {self._handed_over} records were handed over, but {self._stored} are stored."
            )

    def poll(self, seconds: float) -> None:
        """Take what librdkafka reports, for some time; raises if a record failed."""
        with self._explaining():
            self._producer.poll(seconds)
        if self._failed is not None:
            if self._failed.code() in _PURGED:
                # Wait for the report of the record that failed, which holds the reason.
                self._flush()
            with self._explaining():
                raise self._reports.explained(self._failed, self._doing)
        self._reports.check()
        self._check_time()

    def _delivered(self, number: int, size: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._stored += 1
            self.offset = message.offset() or 0
        elif self._failed is None or self._failed.code() in _PURGED:
            # If one record fails, librdkafka purges the others. Keep the error of the one that failed.
            self._failed = error

    def _flush(self) -> int:
        with self._explaining():
            return self._producer.flush(_TURN_SECONDS)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Translate librdkafka's errors; those after the transaction's time-out are replaced by `_check_time`."""
        try:
            with self._reports.explaining(self._doing):
                yield
        except SinkUnavailableError:
            self._check_time()
            raise

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise SinkUnavailableError(
                f"{self._doing} took longer than its transaction_timeout; {self._stored} of the {self._handed_over}"
                " records handed over were stored, and the transaction is aborted. Raise the topic's"
                " transaction_timeout, which the next try uses. For later epochs you may also lower records_per_epoch."
            )


def _known_partitions(producer: Producer, reports: Reports, topics: Sequence[str]) -> dict[str, int]:
    counts = {}
    # Before sending, because librdkafka waits for a missing topic as long as for a slow one.
    for topic in topics:
        partitions = partitions_of(producer, reports, topic, _PATIENCE_SECONDS)
        if partitions is None:
            raise SinkError(f"Kafka has no topic {topic}. Nothing was sent. Create it.")
        counts[topic] = partitions
    return counts


def discard(producer: Producer) -> None:
    """Drop what is still in the queue: records that were not committed, or that were reported as failed."""
    # The producer's own close() would wait for the brokers to abort. No abort is due: after an error before the commit
    # `send` has aborted, and after a commit without an answer the marker tells the outcome.
    producer.purge()
    with suppress(KafkaException):
        producer.poll(0)
