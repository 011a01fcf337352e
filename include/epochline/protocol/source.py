"""The interface of a source of the user's own: integer positions per partition, read in bounded ranges. Pure.

A source keeps no position. The ledger does: a plan takes ``[head, end)`` of each partition, each attempt reads exactly
that range, and only the commit moves the head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """One partition of a source now: positions ``[start, end)`` can be read.

    ``newest`` is the position after the newest one that was seen, if that lies beyond ``end``: open transactions may
    still give records below it. ``waits_for`` then says whose they are. Such a partition may give a lower ``end`` than
    before; no position that was below an earlier ``end`` changes.

    ``identity`` says which positions these are. It changes if the same positions come to mean other records, for
    example because a table was made again. A pipeline then stops, as for a Kafka topic that was made again.
    """

    partition: int
    identity: str
    start: int
    end: int
    newest: int | None = None
    waits_for: str | None = None

    def __post_init__(self) -> None:
        if self.partition < 0 or not self.identity or not 0 <= self.start <= self.end:
            raise ValueError(f"a partition needs a number, an identity and 0 <= start <= end, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record. ``timestamp`` is a moment with a time zone, or None."""

    position: int
    value: bytes | None
    key: bytes | None = None
    timestamp: datetime | None = None


class Source(Protocol):
    """A source of the user's own. A method raises `SourceUnavailableError` or ``OSError`` where a retry helps."""

    def partitions(self) -> Sequence[SourcePartition]:
        """The partitions now. A position below ``end`` is final: no record may appear or change there later."""

    def read(self, partition: int, start: int, until: int) -> Iterable[SourceRecord]:
        """The records with positions in ``[start, until)``, in order. A repeat gives the same records."""

    def count(self, partition: int, start: int, until: int) -> int:
        """The number of records with positions in ``[start, until)``. Only asked if positions are sparse."""
