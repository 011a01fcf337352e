"""Compare what ``read_committed`` and ``read_uncommitted`` consumers see of a topic."""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from epochline.errors import SourceError
from epochline.kafka.records import Columns, ReadSession, RecordReader
from epochline.protocol.offsets import OffsetRange

_STALLED_SECONDS = 60.0
_EXAMPLES = 5


class Isolation(enum.StrEnum):
    """Kafka's ``isolation.level`` of a consumer."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Counts of the records that a consumer of one isolation level received."""

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
    """Reads the same offsets of a topic at one or both isolation levels, in every partition from ``since`` on.

    Raises `SourceError` if Kafka does not answer, refuses, or has no such topic.
    """

    def __init__(
        self, settings: Mapping[str, str], topic: str, isolations: Sequence[Isolation], since: int = 0
    ) -> None:
        self._topic = topic
        self._levels: dict[Isolation, _Level] = {}
        with ExitStack() as opened:
            for isolation in isolations:
                reader = RecordReader(settings, _STALLED_SECONDS, isolation=isolation)
                self._levels[isolation] = _Level(opened.enter_context(reader.session()), topic, since)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, progress: Callable[[int, int], None] = lambda _done, _all: None) -> int:
        """Read on to the current ends. Returns the number of new records of all levels.

        ``progress`` is called with the number of offsets read so far and the number to read.
        """
        # The committed end first: so the other level reads at least as far, even if records are written meanwhile.
        levels = [self._levels[isolation] for isolation in Isolation if isolation in self._levels]
        until = [level.current_ends() for level in levels]
        wanted = sum(sum(ends.values()) - sum(level.ends.values()) for level, ends in zip(levels, until, strict=True))
        done = new = 0
        for level, ends in zip(levels, until, strict=True):
            for records, passed in level.read(ends):
                new, done = new + records, done + passed
                progress(done, wanted)
        return new

    def result(self) -> TopicComparison:
        """The comparison of what was read so far."""
        committed = self._levels.get(Isolation.READ_COMMITTED)
        uncommitted = self._levels.get(Isolation.READ_UNCOMMITTED)
        widest = uncommitted or committed
        assert widest is not None, "no isolation level"  # noqa: S101
        return TopicComparison(
            topic=self._topic,
            starts=widest.starts,
            ends=widest.ends,
            seen={isolation: level.seen() for isolation, level in self._levels.items()},
            hidden=_hidden(committed, uncommitted) if committed and uncommitted else None,
        )


class _Level:
    def __init__(self, session: ReadSession, topic: str, since: int) -> None:
        self._session, self._topic = session, topic
        count = session.partitions(topic)
        if count is None:
            raise SourceError(f"Kafka has no topic {topic}. Correct the name.")
        self.starts = {partition: max(since, session.log(topic, partition)[0]) for partition in range(count)}
        self.ends = dict(self.starts)
        """How far this level has read; for ``read_committed`` at most to the last stable offset."""
        self.offsets: dict[int, array[int]] = {partition: array("q") for partition in self.starts}
        self._keys, self._values, self._records = (array("Q") for _ in range(3))
        self._places = array("l"), array("q")
        """Partition and offset of each record with a key."""

    def current_ends(self) -> dict[int, int]:
        return {
            partition: max(self._session.log(self._topic, partition)[1], end) for partition, end in self.ends.items()
        }

    def read(self, until: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Read on. Yields, for some records at a time, their number and the number of offsets passed."""
        for partition, end in until.items():
            if self.ends[partition] == end:
                continue
            left = OffsetRange(start=self.ends[partition], until=end)
            for columns in self._session.read(self._topic, partition, left):
                self._count(partition, columns)
                yield len(columns["offset"]), self._pass(partition, columns["offset"][-1] + 1)
            yield 0, self._pass(partition, end)

    def _pass(self, partition: int, position: int) -> int:
        before, self.ends[partition] = self.ends[partition], position
        return position - before

    def _count(self, partition: int, columns: Columns) -> None:
        self.offsets[partition].extend(columns["offset"])
        rows = zip(*(columns[name] for name in ("offset", "key", "value", "headers")), strict=True)
        for offset, key, value, headers in rows:
            if key is not None:
                self._keys.append(_digest(key))
                self._places[0].append(partition)
                self._places[1].append(offset)
            self._values.append(_digest(value))
            self._records.append(_digest(key, value, *(part for header in headers or () for part in header)))

    def seen(self) -> Seen:
        repeated, examples = self._repeated_keys()
        return Seen(
            records={partition: len(offsets) for partition, offsets in self.offsets.items()},
            keyless=len(self._values) - len(self._keys),
            distinct_keys=len(self._keys) - repeated,
            distinct_values=_distinct(self._values),
            repeats=len(self._records) - _distinct(self._records),
            repeated_keys=repeated,
            examples=examples,
        )

    def _repeated_keys(self) -> tuple[int, list[tuple[str, str]]]:
        """How many records have the key of an earlier one, and places of some."""
        digests = np.asarray(self._keys, dtype=np.uint64)
        order = np.argsort(digests, kind="stable")
        repeats = np.flatnonzero(digests[order][1:] == digests[order][:-1])
        partitions, offsets = self._places
        examples = []
        for at in repeats[:_EXAMPLES]:
            first, second = sorted((partitions[index], offsets[index]) for index in order[at : at + 2])
            examples.append((f"{self._topic}-{first[0]}@{first[1]}", f"{self._topic}-{second[0]}@{second[1]}"))
        return len(repeats), examples


def _hidden(committed: _Level, uncommitted: _Level) -> dict[int, Hidden]:
    hidden = {}
    for partition, offsets in uncommitted.offsets.items():
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
