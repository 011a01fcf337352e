"""Put the lines of a file into a topic: each once, in a known partition, acknowledged by all replicas."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, Producer
from kafka.errors import KafkaError, TopicAlreadyExistsError

from epochline.config.kafka import SERVERS
from epochline.errors import ConfigurationError, EpochlineError, SourceError, SourceUnavailableError
from epochline.kafka.admin import new_admin, shorten_log
from epochline.kafka.client import SOURCE, Reports, new_producer
from epochline.kafka.outgoing import Outgoing, Partitioner, plain_record
from epochline.kafka.sending import RecordQueue, discard
from epochline.kafka.tokens import kafka_python_settings

shorten_log()

STANDARD_INPUT = Path("-")
_PROPERTIES = {"client.id": "epochline-feed", "linger.ms": 20, "batch.size": 256 * 1024, "message.timeout.ms": 120_000}

ReadLine = Callable[[bytes], Outgoing]
"""Makes a record of a line. Raises `ValueError`, whose text goes on after "line 3"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """What the broker acknowledged."""

    topic: str
    created: bool  # the topic was missing
    records: Mapping[int, int]  # per partition, all partitions of the topic
    payload: int  # bytes of the values
    seconds: float

    @property
    def total(self) -> int:
        """Records in all partitions."""
        return sum(self.records.values())

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.total / self.seconds if self.seconds > 0 else 0.0


def feed(
    servers: str | Mapping[str, str],
    path: Path,
    topic: str,
    partitions: int = 4,
    rate: float | None = None,
    progress: Callable[[int], None] = lambda _read: None,
    *,
    read: ReadLine = plain_record,
    partitioner: Partitioner = Partitioner.MURMUR2,
) -> FeedReport:
    """Send each line as one record.

    A record goes to the partition that it names, or to the one that the partitioner gives its key. Without both, line
    i, counted from 0, goes to partition i modulo the number of partitions. So the same file always fills the same
    partitions with the same records in the same order. The producer is idempotent and waits for all replicas: a record
    that is resent after a lost answer is stored once. Calling again sends the lines again.

    Args:
        servers: Kafka's `host:port`, or the properties of a connection, with a login and certificates.
        path: the file; `-` is the standard input.
        topic: created with `partitions` partitions if it is missing; an existing topic is not changed.
        partitions: of a topic that is created.
        rate: records per second at most; None: no limit.
        progress: called with the bytes of each line that was handed to the client, including its newline.
        read: makes the record of a line.
        partitioner: for records with a key.

    Raises:
        ConfigurationError: the file cannot be read, or a line makes no record. All lines of a regular file are checked
            before any is sent; of a stream, the lines before the wrong one are stored. The message names the line.
        SourceUnavailableError: Kafka does not answer. The message says how many lines are stored.
        SourceError: Kafka refuses the topic or a record.
    """
    settings = {SERVERS: servers} if isinstance(servers, str) else servers
    highest = _check(path, read)
    with _lines(path) as lines:
        created, count = _ensure_topic(settings, topic, partitions)
        if highest is not None:
            _require_partition(*highest, path, topic, count, "Nothing was sent.")
        reports = Reports(settings, SOURCE)
        hashed = {} if partitioner is Partitioner.ROUND_ROBIN else {"partitioner": partitioner.value}
        producer = new_producer(settings, reports, {**_PROPERTIES, **hashed})
        sent = _FeedQueue(producer, reports, f"feeding {path} into {topic}")
        start = time.monotonic()
        try:
            for number, line in enumerate(lines):
                if rate:
                    sent.wait_until(start + number / rate)
                try:
                    record = _record(path, number, line, read)
                    _require_partition(record.partition or 0, number, path, topic, count)
                except ConfigurationError as error:
                    sent.settle()
                    raise ConfigurationError(f"{error} Kafka has the {sent.acknowledged} lines before it.") from None
                # Without a partition, the key chooses one.
                in_turn = partitioner is Partitioner.ROUND_ROBIN or record.key is None
                sent.put(topic, record, number % count if record.partition is None and in_turn else record.partition)
                progress(len(line))
            sent.settle()
        finally:
            discard(producer)
    seconds = time.monotonic() - start
    records = {partition: sent.records[partition] for partition in range(count)}
    return FeedReport(topic=topic, created=created, records=records, payload=sent.payload, seconds=seconds)


def check_readable(path: Path) -> None:
    """Raise `ConfigurationError` for a file that `feed` could not read. A named pipe is not opened."""
    if path != STANDARD_INPUT and (path.is_dir() or not os.access(path, os.R_OK)):
        with _lines(path):
            return


class _FeedQueue(RecordQueue):
    """Counts what Kafka acknowledged."""

    def __init__(self, producer: Producer, reports: Reports, doing: str) -> None:
        super().__init__(producer, reports, doing)
        self._early: set[int] = set()
        self.acknowledged = 0
        """How many records from the first one on are stored; later ones may be stored too."""
        self.records: Counter[int] = Counter()
        self.payload = 0

    def wait_until(self, due: float) -> None:
        while (left := due - time.monotonic()) > 0:
            self.poll(left)

    def _delivered(self, number: int, size: int, error: ClientError | None, message: Message) -> None:
        super()._delivered(number, size, error, message)
        if error is None:
            self.records[message.partition() or 0] += 1
            self.payload += size
            self._early.add(number)
            while self.acknowledged in self._early:
                self._early.remove(self.acknowledged)
                self.acknowledged += 1

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with super()._explaining():
                yield
        except EpochlineError as error:
            raise type(error)(
                f"{error} Kafka has the first {self.acknowledged} lines, and may have later ones. Feeding the file"
                " again sends them once more."
            ) from error


def _check(path: Path, read_line: ReadLine) -> tuple[int, int] | None:
    """The greatest partition that a line of a regular file names, and the number of that line, counted from 0."""
    if read_line is plain_record or path == STANDARD_INPUT or not path.is_file():
        return None
    highest: tuple[int, int] | None = None
    with _lines(path) as lines:
        for number, line in enumerate(lines):
            try:
                partition = _record(path, number, line, read_line).partition
            except ConfigurationError as error:
                raise ConfigurationError(f"{error} Nothing was sent.") from None
            if partition is not None and (highest is None or partition > highest[0]):
                highest = partition, number
    return highest


def _record(path: Path, number: int, line: bytes, read_line: ReadLine) -> Outgoing:
    try:
        return read_line(line)
    except ValueError as error:
        raise ConfigurationError(f"line {number + 1} of {path} {error}.") from None


def _require_partition(partition: int, number: int, path: Path, topic: str, count: int, end: str = "") -> None:
    if partition >= count:
        raise ConfigurationError(
            f"line {number + 1} of {path} is for partition {partition}, but {topic} has {count}, counted from 0."
            f" {end}".rstrip()
        )


def _ensure_topic(settings: Mapping[str, str], topic: str, partitions: int) -> tuple[bool, int]:
    try:
        with closing(new_admin(kafka_python_settings(settings), 10_000)) as admin:
            wanted = {topic: {"num_partitions": partitions, "replication_factor": -1}}
            try:
                admin.create_topics(wanted, wait_for_metadata=True)
                created = True
            except TopicAlreadyExistsError:
                created = False
            return created, len(admin.describe_topics([topic])[0]["partitions"])
    except (KafkaError, OSError) as error:
        kind = SourceUnavailableError if isinstance(error, OSError) or error.retriable else SourceError
        raise kind(
            f"topic {topic} could not be opened at {settings[SERVERS]} ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _lines(path: Path) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        source = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    with source:
        yield source
