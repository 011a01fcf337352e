"""Compare what ``read_committed`` and ``read_uncommitted`` consumers see of a topic (E4b, X4)."""

from __future__ import annotations

import enum
import hashlib
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from epochline.errors import SinkError, SinkUnavailableError
from epochline.kafka.client import Reports, call_in_turns, new_consumer, partitions_of

_PATIENCE_SECONDS = 15.0
_STALLED_SECONDS = 60.0
_BATCH = 5_000
_TURN_SECONDS = 0.5
_EXAMPLES = 5


class Isolation(enum.StrEnum):
    """Kafka's ``isolation.level`` of a consumer."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Counts of the records that a consumer of one isolation level received."""

    isolation: Isolation
    records: Mapping[int, int]  # by partition, all partitions of the topic
    keyless: int
    distinct_keys: int
    distinct_values: int
    repeats: int
    """Records that equal an earlier one in key, value and headers."""
    repeated_keys: int
    """Records with the key of an earlier one."""
    examples: Sequence[tuple[str, str]]
    """Two records of some repeated keys, as ``topic-partition@offset``."""

    @property
    def total(self) -> int:
        """Records of all partitions."""
        return sum(self.records.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Numbers of records of a partition that a ``read_committed`` consumer does not see."""

    aborted: int
    undecided: int
    """In an open transaction, or behind one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicComparison:
    """A topic as consumers of each isolation level see it."""

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    seen: Mapping[Isolation, Seen]
    hidden: Mapping[int, Hidden] | None
    """By partition; None if only one isolation level was read."""


class TopicReader:
    """Reads the same offsets of a topic at several isolation levels.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
        topic: its name.
        isolations: one or both.
        since: the offset to begin at in every partition, or the log's start if that is later.

    Raises:
        SinkUnavailableError: Kafka does not answer.
        SinkError: Kafka refuses, or has no such topic.
    """

    def __init__(
        self, settings: Mapping[str, str], topic: str, isolations: Sequence[Isolation], since: int = 0
    ) -> None:
        self._topic = topic
        self._levels: dict[Isolation, _Level] = {}
        try:
            for isolation in isolations:
                self._levels[isolation] = _Level(settings, topic, isolation, since)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for level in self._levels.values():
            level.close()

    def read(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> int:
        """Read on to the current ends. Returns the number of new records of all levels.

        Args:
            progress: called with the number of offsets read so far and the number to read.

        Raises:
            SinkUnavailableError: Kafka stopped answering.
            SinkError: Kafka refuses.
        """
        # The committed end first: so the other level reads at least as far, even if records are written meanwhile.
        levels = [self._levels[isolation] for isolation in Isolation if isolation in self._levels]
        wanted = sum(level.refresh_ends() for level in levels)
        done = new = 0
        for level in levels:
            for records, passed in level.read():
                new, done = new + records, done + passed
                progress(done, wanted)
        return new

    def result(self) -> TopicComparison:
        """The comparison of what was read so far."""
        committed = self._levels.get(Isolation.READ_COMMITTED)
        every = self._levels.get(Isolation.READ_UNCOMMITTED)
        widest = every or committed
        assert widest is not None, "no isolation level"  # noqa: S101
        return TopicComparison(
            topic=self._topic,
            starts=widest.starts,
            ends=widest.ends,
            seen={isolation: level.seen() for isolation, level in self._levels.items()},
            hidden=_hidden(committed, every) if committed and every else None,
        )


class _Level:
    """A consumer of one isolation level, and digests of what it received."""

    def __init__(self, settings: Mapping[str, str], topic: str, isolation: Isolation, since: int) -> None:
        self._topic = topic
        self._isolation = isolation
        self._reports = Reports(settings)
        self._doing = f"reading {topic}"
        self._consumer: Consumer = new_consumer(settings, self._reports, isolation)
        try:
            count = partitions_of(self._consumer, self._reports, topic, _PATIENCE_SECONDS)
            if count is None:
                raise SinkError(f"Kafka has no topic {topic}. Correct the name.")
            self.starts = {partition: max(since, self._log(partition)[0]) for partition in range(count)}
        except BaseException:
            self._consumer.close()
            raise
        self.ends: dict[int, int] = dict(self.starts)
        """Where this level stops reading; for ``read_committed`` the last stable offset."""
        self._positions = dict(self.starts)
        self.offsets: dict[int, array[int]] = {partition: array("q") for partition in self.starts}
        self._keys, self._values, self._records = (array("Q") for _ in range(3))
        self._where: dict[str, array[int]] = {"partition": array("l"), "offset": array("q")}

    def close(self) -> None:
        self._consumer.close()

    def refresh_ends(self) -> int:
        """Fetch the current ends. Returns the number of offsets to read."""
        for partition in self.ends:
            self.ends[partition] = max(self._log(partition)[1], self._positions[partition])
        return sum(self.ends[partition] - at for partition, at in self._positions.items())

    def read(self) -> Iterator[tuple[int, int]]:
        """Read to the ends. Yields, for some records at a time, their number and the number of offsets passed."""
        behind = {partition for partition, at in self._positions.items() if at < self.ends[partition]}
        if not behind:
            return
        assigned = [TopicPartition(self._topic, partition, self._positions[partition]) for partition in sorted(behind)]
        self._consumer.assign(assigned)
        last_progress = time.monotonic()
        while behind:
            with self._reports.explaining(self._doing):
                messages = self._consumer.consume(_BATCH, _TURN_SECONDS)
            self._reports.check()
            before, records = sum(self._positions.values()), 0
            for message in messages:
                records += self._receive(message, behind)
            passed = sum(self._positions.values()) - before
            if passed:
                last_progress = time.monotonic()
                yield records, passed
            elif time.monotonic() - last_progress > _STALLED_SECONDS:
                raise SinkUnavailableError(
                    f"{self._topic} could not be read to its end: for {_STALLED_SECONDS:.0f} s no record came from"
                    f" partitions {sorted(behind)}. Nothing was counted. A retry may help."
                )
        self._consumer.unassign()

    def _receive(self, message: Message, behind: set[int]) -> int:
        error, offset, partition = message.error(), message.offset() or 0, message.partition() or 0
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return 0  # The consumer uses no group.
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._reports.explained(error, self._doing)
        if partition not in behind:
            return 0  # Written after the ends were fetched.
        end = self.ends[partition]
        counted = error is None and offset < end
        if counted:
            self._count(message, partition, offset)
        self._positions[partition] = min(offset if error is not None else offset + 1, end)
        if self._positions[partition] >= end:
            behind.discard(partition)
        return int(counted)

    def _count(self, message: Message, partition: int, offset: int) -> None:
        key, value = message.key(), message.value()
        self.offsets[partition].append(offset)
        if key is not None:
            self._keys.append(_digest(key))
            self._where["partition"].append(partition)
            self._where["offset"].append(offset)
        self._values.append(_digest(value))
        self._records.append(_digest(key, value, *(part for header in message.headers() or () for part in header)))

    def _log(self, partition: int) -> tuple[int, int]:
        at = TopicPartition(self._topic, partition)
        return call_in_turns(
            lambda turn: self._consumer.get_watermark_offsets(at, timeout=turn),
            self._consumer,
            self._reports,
            f"reading the end offsets of {self._topic}",
            _PATIENCE_SECONDS,
        )

    def seen(self) -> Seen:
        repeated, examples = self._repeated_keys()
        return Seen(
            isolation=self._isolation,
            records={partition: len(offsets) for partition, offsets in self.offsets.items()},
            keyless=len(self._values) - len(self._keys),
            distinct_keys=len(self._keys) - repeated,
            distinct_values=_distinct(self._values),
            repeats=len(self._records) - _distinct(self._records),
            repeated_keys=repeated,
            examples=examples,
        )

    def _repeated_keys(self) -> tuple[int, list[tuple[str, str]]]:
        digests = np.asarray(self._keys, dtype=np.uint64)
        order = np.argsort(digests, kind="stable")
        again = np.flatnonzero(digests[order][1:] == digests[order][:-1])
        pairs = [sorted(map(self._place, order[at : at + 2])) for at in again[:_EXAMPLES]]
        first_and_again = [[f"{self._topic}-{partition}@{offset}" for partition, offset in pair] for pair in pairs]
        return len(again), [(first, second) for first, second in first_and_again]

    def _place(self, index: int) -> tuple[int, int]:
        return self._where["partition"][index], self._where["offset"][index]


def _hidden(committed: _Level, every: _Level) -> dict[int, Hidden]:
    hidden = {}
    for partition, offsets in every.offsets.items():
        stable = committed.ends[partition]
        decided = int(np.count_nonzero(np.asarray(offsets, dtype=np.int64) < stable))
        hidden[partition] = Hidden(
            aborted=decided - len(committed.offsets[partition]), undecided=len(offsets) - decided
        )
    return hidden


def _distinct(digests: array[int]) -> int:
    return len(np.unique(np.asarray(digests, dtype=np.uint64)))


def _digest(*parts: Any) -> int:
    """A 64-bit digest of bytes, texts or None. 64 bits keep some ten million records in memory."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # The length separates the parts, and tells None from an empty part.
        digest.update(b"-" if content is None else b"%d:" % len(content))
        digest.update(content or b"")
    return int.from_bytes(digest.digest(), "little")
