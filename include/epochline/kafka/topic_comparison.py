"""What of a topic is committed and what only a reader of uncommitted records sees, counted side by side (E4b, X4)."""

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
from epochline.kafka.client import Reports, new_consumer, partitions_of, patiently

_PATIENCE_SECONDS = 15.0
_STALLED_SECONDS = 60.0
_AT_ONCE = 5_000
_TURN_SECONDS = 0.5
_EXAMPLES = 5


class Isolation(enum.StrEnum):
    """Kafka's ``isolation.level`` of a consumer."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a consumer of one isolation level was given."""

    isolation: Isolation
    records: Mapping[int, int]  # by partition, all partitions of the topic
    keyless: int
    distinct_keys: int
    distinct_values: int
    repeats: int
    """Records that another one before them equals in key, value and headers."""
    repeated_keys: int
    """Records whose key another one before them has."""
    examples: Sequence[tuple[str, str]]
    """Some repeated keys: two places, ``topic-partition@offset``, where each stands."""

    @property
    def total(self) -> int:
        """Records of all partitions."""
        return sum(self.records.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Records of a partition that a reader of committed records does not see."""

    aborted: int
    undecided: int
    """Of an open transaction, or behind one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTally:
    """A topic as consumers see it."""

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    seen: Mapping[Isolation, Seen]
    hidden: Mapping[int, Hidden] | None
    """By partition; None where only one isolation level was read."""


class TopicReader:
    """Reads a topic at several isolation levels at once, partition by partition the same offsets.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
        topic: its name.
        isolations: one or both.
        since: offset to begin at in every partition; at the log's start where that is later.

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
        """Read on to the ends as they are now; how many records were new at any level.

        Args:
            progress: told how many offsets are behind, of how many.

        Raises:
            SinkUnavailableError: Kafka does not answer any more.
            SinkError: Kafka refuses.
        """
        # The committed end is asked first: so what is stable is in both, whatever is written meanwhile.
        levels = [self._levels[isolation] for isolation in Isolation if isolation in self._levels]
        wanted = sum(level.look() for level in levels)
        done = new = 0
        for level in levels:
            for records, passed in level.read():
                new, done = new + records, done + passed
                progress(done, wanted)
        return new

    def result(self) -> TopicTally:
        """What was read until now."""
        committed = self._levels.get(Isolation.READ_COMMITTED)
        every = self._levels.get(Isolation.READ_UNCOMMITTED)
        widest = every or committed
        assert widest is not None, "no isolation level"  # noqa: S101
        return TopicTally(
            topic=self._topic,
            starts=widest.starts,
            ends=widest.ends,
            seen={isolation: level.seen() for isolation, level in self._levels.items()},
            hidden=_hidden(committed, every) if committed and every else None,
        )


class _Level:
    """One consumer, and what it was given."""

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
        """Up to where this level reads; for committed records the last stable offset."""
        self._positions = dict(self.starts)
        self.offsets: dict[int, array[int]] = {partition: array("q") for partition in self.starts}
        self._keys, self._values, self._whole = (array("Q") for _ in range(3))
        self._where: dict[str, array[int]] = {"partition": array("l"), "offset": array("q")}

    def close(self) -> None:
        self._consumer.close()

    def look(self) -> int:
        """Ask for the ends of now; how many offsets there are to read."""
        for partition in self.ends:
            self.ends[partition] = max(self._log(partition)[1], self._positions[partition])
        return sum(self.ends[partition] - at for partition, at in self._positions.items())

    def read(self) -> Iterator[tuple[int, int]]:
        """Read to the ends; some records at a time, how many, and how many offsets they passed."""
        behind = {partition for partition, at in self._positions.items() if at < self.ends[partition]}
        if not behind:
            return
        self._consumer.assign([TopicPartition(self._topic, one, self._positions[one]) for one in sorted(behind)])
        heard = time.monotonic()
        while behind:
            with self._reports.explaining(self._doing):
                messages = self._consumer.consume(_AT_ONCE, _TURN_SECONDS)
            self._reports.check()
            before, records = sum(self._positions.values()), 0
            for message in messages:
                records += self._take(message, behind)
            passed = sum(self._positions.values()) - before
            if passed:
                heard = time.monotonic()
                yield records, passed
            elif time.monotonic() - heard > _STALLED_SECONDS:
                raise SinkUnavailableError(
                    f"{self._topic} could not be read to its end: for {_STALLED_SECONDS:.0f} s nothing came of"
                    f" partitions {sorted(behind)}. Nothing was counted. Another try may help."
                )
        self._consumer.unassign()

    def _take(self, message: Message, behind: set[int]) -> int:
        error, offset, partition = message.error(), message.offset() or 0, message.partition() or 0
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return 0  # Nothing is asked of the group.
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._reports.explained(error, self._doing)
        if partition not in behind:
            return 0  # Written since the ends were asked for.
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
        self._whole.append(_digest(key, value, *(part for header in message.headers() or () for part in header)))

    def _log(self, partition: int) -> tuple[int, int]:
        at = TopicPartition(self._topic, partition)
        return patiently(
            lambda turn: self._consumer.get_watermark_offsets(at, timeout=turn),
            self._consumer,
            self._reports,
            f"asking for the ends of {self._topic}",
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
            repeats=len(self._whole) - _distinct(self._whole),
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
    """64 bits of bytes, texts or None, so that topics of some ten million records fit into memory."""
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # The length says where a part ends, and that it is missing.
        made.update(b"-" if content is None else b"%d:" % len(content))
        made.update(content or b"")
    return int.from_bytes(made.digest(), "little")
