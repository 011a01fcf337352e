"""Receipts: which sinks show which epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.targets import Upserted
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.sink import Committable, ShownEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DueReceipt:
    """What a committed epoch still has to show in one sink.

    Args:
        sink: the sink's name.
        committable: what its seal left.
        tried: whether a publish began with it before, so that nobody knows how far it got.
    """

    pipeline: str
    epoch_id: int
    sink: str
    committable: Committable
    tried: bool

    def __str__(self) -> str:
        return f"epoch {self.epoch_id} of {self.pipeline} in {self.sink}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An epoch that the ledger lost, and a consumer group or a sink shows."""

    shown_by: str
    shown: ShownEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedReceipt:
    """A receipt as it is told to others: which epoch a sink shows, when, and which offsets it took."""

    epoch_id: int
    sink: str
    rows: int
    shown_at: datetime
    offsets: Mapping[str, Mapping[str, tuple[int, int]]]
    """By topic and partition, ``[start, until)``."""


class Receipts(Protocol):
    """Per committed epoch and sink, whether the sink shows it."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """At the seal: keep with the attempt's manifests, by their sink, what sinks left for their commit."""

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """In the commit: one receipt per sink, with its rows and what became of those of an upsert, by its table.

        Tables show the epoch now, the others are due. What ``shown_before`` names gets none.
        """

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        """The sinks that have a receipt of the epoch."""

    def knows(self, pipeline: str, token: str) -> bool:
        """Whether the ledger knows that an attempt was committed, or may be: it is sealed and not fenced.

        Also known is what an operator accepted.
        """

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        """From here on an epoch is known that the ledger lost when it went back in time."""

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        """What was accepted, in that order; of an epoch that was accepted again, what was accepted last."""

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        """What is still to be shown, epochs in order."""

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        """By sink, how many epochs it does not show yet; sinks that show all are left out."""

    def try_to_show(self, receipt: DueReceipt) -> bool:
        """Note that a publish begins with it; False where the sink shows it already."""

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        """Note that the sink shows the epoch, which took so long, and empty its outbox; whether it was not noted."""

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        """By sink, what was committed of an epoch that every sink shows; nothing where one does not yet."""

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        """Receipts of sinks that show their epoch, and that nobody is known to have heard of, the oldest first."""

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        """Note which run's task tells them; whether it was heard is known later."""

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        """Note that these were told, and heard; nothing for those that nobody told."""
