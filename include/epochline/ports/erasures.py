"""What leaves the ledger: history that is older than its retention, and values that an operator erases."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

RecordPlace = tuple[int, str, int, int]
"""Generation, topic id, partition and offset of a quarantined record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A quarantined record with its bytes."""

    generation: int
    topic: str
    topic_id: str
    partition: int
    offset: int
    record_timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Sequence[str | None]] | None
    """Names and values; a value is base64."""
    reason: str

    @property
    def place(self) -> RecordPlace:
        """Where it is in the quarantine."""
        return self.generation, self.topic_id, self.partition, self.offset

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What tables hold of a key, as numbers of rows by a name for people."""

    copies: Mapping[str, int]
    """Before-images, deleted keys, savepoints and state."""
    targets: Mapping[str, int]
    texts: int
    """Refused rows and errors that mention every value of the key."""
    unsearched: Sequence[str]
    """Tables without the columns of the key: they hold sums over many keys, or other columns."""
    obstacle: str | None = None
    """Why nothing can be erased now."""
    needs_target: str | None = None
    """A target with rows of the key that before-images hold too: both must go, or a restore would leave them apart."""


class Erasures(Protocol):
    """Callers that delete hold the pipeline's row lock; for `expire` also the lock of its unfinished epoch."""

    def retentions(self) -> Mapping[str, Mapping[str, float]]:
        """By pipeline, how many seconds its newest epoch keeps each kind of history; without one, for ever."""

    def clock(self) -> datetime:
        """The time by the database's clock."""

    def expire(self, pipeline: str, kind: str, age: float, at_most: int) -> int:
        """Delete at most so many things of a kind, a field of `Retention`, that are older than ``age`` seconds.

        Returns how many were deleted. What an epoch, a restore to a younger savepoint or the chain needs, stays.
        """

    def records(self, pipeline: str) -> Iterator[Sequence[StoredRecord]]:
        """All quarantined records that have their bytes, in pages."""

    def holdings(self, pipeline: str, key: Mapping[str, str]) -> Holdings:
        """What tables hold of a key: values by column, as text, which each table's type takes. Locks state tables.

        Raises:
            ActionRefusedError: a column takes no such value.
        """

    def erase(
        self,
        pipeline: str,
        key: Mapping[str, str],
        records: Collection[RecordPlace],
        *,
        targets: bool,
        by: str,
        why: str,
    ) -> None:
        """Erase what `holdings` counts, targets only if asked, and these records' bytes; keep by whom and why."""

    def erased(self, pipeline: str, epochs: Sequence[int]) -> Sequence[str]:
        """What operators erased of the records and rows of these epochs: when, by whom and why; or nothing."""

    def has_state(self, pipeline: str) -> bool:
        """Whether an epoch ever left state."""

    def folders(self, pipeline: str) -> Sequence[str]:
        """The settings ``epoch_files`` that epochs were planned with."""

    def delete_files(self, pipeline: str) -> Mapping[str, int]:
        """Delete the epoch files of a pipeline that ever had state, and what killed writers left.

        Returns how many there were, by folder. `SavepointFileError`: one cannot be read or written; a repeat goes on.
        """


Parsed = Sequence[Sequence[Mapping[str, Any]]]
"""For each of several records, the rows that today's parse makes of it."""
