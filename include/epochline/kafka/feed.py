"""Put the lines of a file into a topic: each once, in a fixed partition, acknowledged by all replicas."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, TopicAlreadyExistsError

from epochline.errors import ConfigurationError, SourceError, SourceUnavailableError

STANDARD_INPUT = Path("-")
# Records sent and not yet acknowledged; kafka-python itself has no limit on what it keeps in memory.
_IN_FLIGHT = 20_000
_MAX_REQUEST = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """What the broker acknowledged."""

    topic: str
    created: bool  # the topic was missing
    records: Mapping[int, int]  # per partition, all partitions of the topic
    payload: int  # bytes, without the newlines
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
    bootstrap: str,
    path: Path,
    topic: str,
    partitions: int = 4,
    rate: float | None = None,
    progress: Callable[[int], None] = lambda _read: None,
) -> FeedReport:
    r"""Send each line as one record: without its `\n`, otherwise byte for byte, without a key.

    Line i, counted from 0, goes to partition i modulo the number of partitions. So the same file always fills the
    same partitions with the same records in the same order. The producer is idempotent and waits for all replicas: a
    record that is resent after a lost answer is stored once. Calling again sends the lines again.

    Args:
        bootstrap: Kafka's `host:port`.
        path: the file; `-` is the standard input.
        topic: created with `partitions` partitions if it is missing; an existing topic is not changed.
        partitions: of a topic that is created.
        rate: records per second at most; None: no limit.
        progress: called with the bytes of each line that was read, including its newline.

    Raises:
        ConfigurationError: the file cannot be read.
        SourceUnavailableError: Kafka does not answer. The message says how many lines are stored.
        SourceError: Kafka refuses the topic or a record.
    """
    with _lines(path) as lines:
        created, count = _ensure_topic(bootstrap, topic, partitions)
        sent = _FeedProducer(bootstrap, topic)
        start = time.monotonic()
        try:
            for number, line in enumerate(lines):
                if rate:
                    _wait_until(start + number / rate)
                sent.send(line.removesuffix(b"\n"), number % count)
                progress(len(line))
            sent.finish()
        except KafkaError as error:
            raise _explained(
                error,
                f"feeding {path} into {topic} stopped. Kafka has the first {sent.acknowledged} lines, and may have"
                " later ones. Feeding the file again sends them once more",
            ) from error
        finally:
            sent.close()
    seconds = time.monotonic() - start
    records = {partition: sent.records[partition] for partition in range(count)}
    return FeedReport(topic=topic, created=created, records=records, payload=sent.payload, seconds=seconds)


def check_readable(path: Path) -> None:
    """Refuse a file that `feed` could not read. A named pipe is not opened, because it can be read only once.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if path != STANDARD_INPUT and (path.is_dir() or not os.access(path, os.R_OK)):
        with _lines(path):
            return


class _FeedProducer:
    """A producer, and the futures of its unacknowledged records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._pending: deque[tuple[int, int, Any]] = deque()
        self.acknowledged = 0
        self.records: Counter[int] = Counter()
        self.payload = 0
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="epochline-feed",
            acks="all",
            enable_idempotence=True,
            linger_ms=20,
            batch_size=256 * 1024,
            max_request_size=_MAX_REQUEST,
            allow_auto_create_topics=False,
        )

    def send(self, value: bytes, partition: int) -> None:
        """Send a record. Waits while too many records are unacknowledged."""
        future = self._producer.send(self._topic, value=value, partition=partition)
        self._pending.append((partition, len(value), future))
        while len(self._pending) > _IN_FLIGHT:
            self._settle()

    def finish(self) -> None:
        """Wait until every record is acknowledged; raises if one failed."""
        self._producer.flush()
        while self._pending:
            self._settle()

    def close(self) -> None:
        """Close the connection. It does not wait for unacknowledged records."""
        self._producer.close(timeout=5)

    def _settle(self) -> None:
        # In the order of sending, so that `acknowledged` counts the leading lines.
        partition, size, future = self._pending[0]
        future.get(timeout=150)  # longer than the producer's own delivery time-out, whose error says more
        self._pending.popleft()
        self.acknowledged += 1
        self.records[partition] += 1
        self.payload += size


def _ensure_topic(bootstrap: str, topic: str, partitions: int) -> tuple[bool, int]:
    try:
        client = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="epochline-feed", bootstrap_timeout_ms=10_000)
        with closing(client) as admin:
            wanted = {topic: {"num_partitions": partitions, "replication_factor": -1}}
            try:
                admin.create_topics(wanted, wait_for_metadata=True)
                created = True
            except TopicAlreadyExistsError:
                created = False
            return created, len(admin.describe_topics([topic])[0]["partitions"])
    except KafkaError as error:
        raise _explained(error, f"topic {topic} could not be opened at {bootstrap}") from error


def _explained(error: KafkaError, what: str) -> SourceError:
    kind = SourceUnavailableError if error.retriable else SourceError
    return kind(f"{what} ({type(error).__name__}: {error})")


def _wait_until(due: float) -> None:
    delay = due - time.monotonic()
    if delay > 0:
        time.sleep(delay)


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
