"""What made a row of a target: the answer of `epochline why`, for the terminal and the page. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The place of a record.

    Args:
        topic: as the ledger names it.
        partition: its partition.
        offset: its offset.
        row: the number of the row within the record.
        topic_id: the identity of the log; None if no committed range holds the place.
        gone: the reason why the log may hold another record there; None if there is none.
        read_at: when the epoch that read it was committed.
        seen_at: when Kafka was last asked where the log begins.
        seen_start: where it began then.
    """

    topic: str
    partition: int
    offset: int
    row: int | None = None
    topic_id: str | None = None
    gone: str | None = None
    read_at: datetime | None = None
    seen_at: datetime | None = None
    seen_start: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def since_when(self) -> str:
        """Between which moments a record that is gone was deleted, as far as anybody looked; empty if nobody did."""
        there = [self.read_at] if self.read_at else []
        gone = None
        if self.seen_at is not None and self.seen_start is not None:
            if self.seen_start <= self.offset:
                there.append(self.seen_at)
            else:
                gone = self.seen_at
        had = f"Kafka had it at {max(there):%Y-%m-%d %H:%M:%S %Z}" if there else ""
        return had + (f", and no longer at {gone:%Y-%m-%d %H:%M:%S %Z}" if gone else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The bytes of a record, with None for a missing key or value, and its timestamp in milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The committed epochs among whose records those of a row are, and what says so."""

    first: int
    last: int
    said: str
    ranges: Sequence[Mapping[str, Any]] = ()


@dataclass(slots=True, kw_only=True)
class RowOrigin:
    """What made one row.

    Args:
        key: its key, or the columns that were asked for.
        window: ``window_start`` and ``window_end`` of a window's result.
        epoch: the row of ``epoch_that_wrote``; None if the row names no epoch that the ledger committed.
        record: the record that the row names.
        scope: where its records are, if it names none.
        replaced: the rows that the before-images keep of its key, the newest first.
        notes: what else is known, as sentences.
    """

    key: Mapping[str, str | None]
    window: tuple[str, str] | None = None
    epoch: Mapping[str, Any] | None = None
    record: Record | None = None
    scope: Scope | None = None
    replaced: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answer. ``rows`` has at most the asked number of rows, ``more`` says whether there are others.

    ``deletion`` is the record that deleted the key, if there is no row. ``kafka`` has connection ids by input;
    ``sees_bytes`` says whether the login may see the bytes of records.
    """

    pipeline: str
    table: str
    mode: str
    rows: Sequence[RowOrigin]
    more: bool
    deletion: Record | None
    kafka: Mapping[str, str]
    sees_bytes: bool

    def kafka_of(self, topic: str) -> tuple[str, str] | None:
        """The connection id of a topic's Kafka, and the topic's name there; None for a source of the user's own."""
        name, slash, own = topic.partition("/")
        if slash and name in self.kafka:
            return self.kafka[name], own
        return (self.kafka[""], topic) if "" in self.kafka else None
