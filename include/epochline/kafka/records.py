"""Read the records of offset ranges with librdkafka: in Spark's tasks, and again for audits."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from epochline.errors import RecordsGoneError, SourceUnavailableError
from epochline.kafka.client import SOURCE, Reports, call_in_turns, new_consumer, partitions_of
from epochline.protocol.offsets import OffsetRange
from epochline.protocol.planning import HeldLog

RECORDS, BYTES = 10_000, 16 * 1024 * 1024
"""Where a batch ends by default."""

_LOOK_SECONDS = 15.0
_TURN_SECONDS = 0.1
"""How long the client collects records for one answer. It bounds what is held beyond a batch."""

_FIRST_BYTES = 64 * 1024
"""The size at which a record is assumed until the first ones are read."""

_PROPERTIES = {
    # What the client fetches ahead: the first in KiB, the second in bytes. A broker sends a larger record all the same.
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "receive.message.max.bytes": 2_000_000_000,
    # The caller may take its time with a batch.
    "max.poll.interval.ms": 86_400_000,
    # How long the client waits after it held enough; a second by default.
    "fetch.queue.backoff.ms": 5,
}

_NO_SUCH_OFFSET = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
_GONE = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)

_NOWHERE = -1

_OFFSET: Callable[[Message], Any] = Message.offset

_UNREADABLE = [("\N{REPLACEMENT CHARACTER}", None)]
"""The headers of a record if the name of one is not UTF-8: the client gives none of them."""

Columns = Mapping[str, Sequence[Any]]
"""Records column by column, under the names that parsers use, without topic and partition. Times are milliseconds."""


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads ranges of offsets of one Kafka cluster at an isolation level, in order and in bounded memory."""

    settings: Mapping[str, str] = field(repr=False)
    """What `epochline.config.kafka.broker_settings` gave."""
    patience: float = 120
    """How long a read waits for the next record, in seconds."""
    records: int = RECORDS
    size: int = BYTES
    """A batch ends after so many records, or so many bytes of keys and values."""
    isolation: str = "read_committed"

    def held(self, topics: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """The logs of those topics that exist, by topic and partition, up to the last stable offset.

        Raises `SourceError` if Kafka refuses, or does not answer.
        """
        # Loads the admin client, which Spark's tasks do not need.
        from epochline.kafka.source import KafkaOffsets

        return KafkaOffsets(self.settings).held(topics) if topics else {}

    @contextmanager
    def session(self) -> Iterator[ReadSession]:
        """Opens a consumer; use it for many ranges, one after the other."""
        reports = Reports(self.settings, SOURCE)
        with closing(new_consumer(self.settings, reports, self.isolation, _PROPERTIES)) as consumer:
            yield ReadSession(self, consumer, reports)


class ReadSession:
    """A consumer that reads ranges."""

    def __init__(self, reader: RecordReader, consumer: Consumer, reports: Reports) -> None:
        self._consumer, self._reports, self._patience = consumer, reports, reader.patience
        self._limits = reader.records, reader.size
        self._assigned: set[tuple[str, int]] = set()

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has, or None if it does not exist."""
        return partitions_of(self._consumer, self._reports, topic, _LOOK_SECONDS)

    def log(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset of a log, and the end of what the isolation level shows."""
        place, doing = TopicPartition(topic, partition), f"reading the end offsets of {topic}"
        return call_in_turns(
            lambda turn: self._consumer.get_watermark_offsets(place, timeout=turn),
            self._consumer, self._reports, doing, _LOOK_SECONDS,
        )  # fmt: skip

    def read(self, topic: str, partition: int, wanted: OffsetRange) -> Iterator[Columns]:
        """Yields the visible records of a range in offset order, some thousand at a time.

        The consumer's position says when the range ends, because its last offsets may hold no visible record. Reading
        a range again gives the same batches.

        Raises:
            RecordsGoneError: retention or a truncation removed offsets of the range.
            SourceUnavailableError: Kafka does not answer any more.
            SourceAuthenticationError: Kafka refuses the login.
            SourceError: Kafka refuses.
        """
        doing = f"reading {topic}-{partition}{wanted}"
        self._assigned.add((topic, partition))
        with self._reports.explaining(doing):
            self._consumer.assign([TopicPartition(topic, partition, wanted.start)])
        batch = _Batch(*self._limits)
        position, progress, at_end = wanted.start, time.monotonic(), False
        while position < wanted.until:
            # No more than the range has left: the client waits until it has as many, or until its turn ends.
            wished = min(batch.room, wanted.until - position)
            with self._reports.explaining(doing), _no_collection():
                answer = self._consumer.consume(wished, _TURN_SECONDS)
                records, reached, end = self._sorted_out(answer, topic, partition, doing)
            self._reports.check()
            before = position
            if reached > position:
                position, progress, at_end = reached, time.monotonic(), False
            at_end = at_end or end == position
            if time.monotonic() - progress > self._patience:
                raise self._nothing_came(doing, position, at_end=at_end)
            # Nothing is taken twice, even if the client still had records of an earlier range.
            first, last = (bisect_left(records, offset, key=_OFFSET) for offset in (before, wanted.until))
            with _no_collection():
                complete = batch.add(records[first:last])
            if complete:
                yield from complete
                # What the caller did with a batch took time, too.
                progress = time.monotonic()
        with self._reports.explaining(doing):
            self._consumer.unassign()
        yield from batch.rest()

    def _sorted_out(
        self, messages: list[Message], topic: str, partition: int, doing: str
    ) -> tuple[list[Message], int, int]:
        """Tell records from reports, and drop what the client still had of another range.

        Returns the records in order, the position after them, and the log's end if it was reached.
        """
        records, end = messages, _NOWHERE
        if any(map(Message.error, messages)):
            records = [message for message in messages if message.error() is None]
            for message in messages:
                error = message.error()
                if error is None or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # The consumer uses no group.
                if error.code() != KafkaError._PARTITION_EOF:
                    raise self._explained(error, doing)
                if (message.topic(), message.partition()) == (topic, partition):
                    end = message.offset() or 0
        # A consumer has no records of a partition that it was never assigned.
        if len(self._assigned) > 1 and (
            {*map(Message.topic, records)} - {topic} or {*map(Message.partition, records)} - {partition}
        ):
            records = [record for record in records if (record.topic(), record.partition()) == (topic, partition)]
        last = (records[-1].offset() or 0) + 1 if records else _NOWHERE
        return records, max(last, end), end

    def _explained(self, error: KafkaError, doing: str) -> Exception:
        if error.code() in _NO_SUCH_OFFSET:
            return RecordsGoneError(f"{doing}: Kafka no longer has these offsets ({error.str()}).")
        if error.code() in _GONE:
            return SourceUnavailableError(f"{doing}: Kafka has no such topic or partition now ({error.str()}).")
        return self._reports.explained(error, doing)

    def _nothing_came(self, doing: str, position: int, *, at_end: bool) -> Exception:
        if at_end:
            return RecordsGoneError(
                f"{doing}: the log ends at offset {position}, and no record came for {self._patience:.0f} s."
            )
        return SourceUnavailableError(
            f"{doing}: no record came for {self._patience:.0f} s at offset {position}{self._reports.last}."
        )


class _Batch:
    """Collects records, and cuts them into batches by their number and size alone, so that a repeat gives the same."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most_records, self._most_bytes = most_records, most_bytes
        self._records: list[Message] = []
        self._keys: list[Any] = []
        self._bytes = 0
        self._average = _FIRST_BYTES

    @property
    def room(self) -> int:
        """How many records to ask for: of the size of the last ones, they end the batch."""
        return max(1, min(self._most_records - len(self._records), (self._most_bytes - self._bytes) // self._average))

    def add(self, records: list[Message]) -> list[Columns]:
        complete: list[Columns] = []
        if not records:
            return complete
        keys = list(map(Message.key, records))
        sizes = _sizes(records, keys)
        self._average = max(1, sum(sizes) // len(sizes))
        while records and self._bytes + sum(sizes) >= self._most_bytes:
            fit = bisect_left(list(accumulate(sizes, initial=self._bytes)), self._most_bytes)
            self._take(records[:fit], keys[:fit])
            complete += self.rest()
            records, keys, sizes = records[fit:], keys[fit:], sizes[fit:]
        self._take(records, keys)
        self._bytes += sum(sizes)
        if len(self._records) >= self._most_records:
            complete += self.rest()
        return complete

    def _take(self, records: list[Message], keys: list[Any]) -> None:
        self._records += records
        self._keys += keys

    def rest(self) -> list[Columns]:
        batches = [_columns(self._records, self._keys)] if self._records else []
        self._records, self._keys, self._bytes = [], [], 0
        return batches


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles while it makes thousands of records: that took two thirds of a read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _sizes(records: list[Message], keys: list[Any]) -> list[int]:
    """The bytes of each record's key and value. A message's length is that of its value."""
    if not any(keys):
        return list(map(len, records))
    return [len(record) + len(key or b"") for record, key in zip(records, keys, strict=True)]


def _columns(records: list[Message], keys: list[Any]) -> Columns:
    stamps = list(map(Message.timestamp, records))
    return {
        "offset": list(map(Message.offset, records)),
        "timestamp": [moment for _, moment in stamps],
        # Of Kafka's Java client: -1 without a timestamp, 0 if the producer set it, 1 if the log did.
        "timestamp_type": [kind - 1 for kind, _ in stamps],
        "key": keys,
        "value": list(map(Message.value, records)),
        "headers": _headers(records),
    }


def _headers(records: list[Message]) -> list[Any]:
    headers: list[Any] = []
    while len(headers) < len(records):
        try:
            # What comes before an error stays in the list. A record that raised must not be asked again: the client
            # keeps a list with holes for it.
            headers.extend(map(Message.headers, records[len(headers) :]))
        except SystemError as error:
            # How the client says that it cannot decode a name.
            if not isinstance(error.__cause__, UnicodeDecodeError):
                raise
            headers.append(_UNREADABLE)
    return headers
