"""Receipts: which sinks show which epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from epochline.declare.pipeline import Pipeline
from epochline.ports.targets import Upserted
from epochline.protocol.epoch import Attempt, Epoch, Run
from epochline.protocol.mirror import LastMirror
from epochline.protocol.sink import Committable, ShownEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DueReceipt:
    """A committed epoch that one sink has yet to show, with what its seal left and whether a publish was ``tried``."""

    pipeline: str
    epoch_id: int
    sink: str
    committable: Committable
    tried: bool

    def __str__(self) -> str:
        return f"epoch {self.epoch_id} of {self.pipeline} in {self.sink}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An epoch that the ledger lost but a consumer group or sink shows."""

    shown_by: str
    shown: ShownEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedReceipt:
    """A receipt as Airflow records it: which epoch a sink shows, since when, and the offsets it read."""

    epoch_id: int
    sink: str
    rows: int
    shown_at: datetime
    offsets: Mapping[str, Mapping[str, Sequence[int]]]
    """By topic and partition, the first offset and the end, which is exclusive."""


class Receipts(Protocol):
    """Per committed epoch and sink, whether the sink shows it."""

    def keep_sealed(self, attempt: Attempt, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """At the seal: keep with the attempt's manifests, by sink, what each sink left for its commit."""

    def write(
        self, epoch: Epoch, attempt: Attempt, pipeline: Pipeline, upserted: Mapping[str, Upserted],
        shown_before: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """In the commit: write one receipt per sink, with its number of rows and, for an upsert, its counts.

        Tables show the epoch now; other sinks are due. Sinks in ``shown_before`` get no receipt.
        """

    def received(self, pipeline: str, epoch_id: int) -> frozenset[str]:
        """The sinks that have a receipt of the epoch."""

    def knows(self, pipeline: str, token: str) -> bool:
        """Whether an attempt was committed, may still be (it is sealed and not fenced), or was accepted."""

    def accept(self, pipeline: str, shown_by: str, shown: ShownEpoch) -> None:
        """Make an epoch known that the ledger lost when it went back in time."""

    def accepted(self, pipeline: str) -> Sequence[Accepted]:
        """Accepted epochs in the order of their acceptance; the latest entry if an epoch was accepted again."""

    def begin_mirror(self, pipeline: str, generation: int, epoch_id: int, topics: Sequence[str]) -> int:
        """Give a number to a write of the heads to the consumer group. The pipeline's row is locked."""

    def confirm_mirror(self, pipeline: str, number: int) -> None:
        """Record that Kafka took the write. The pipeline's row is locked."""

    def last_mirror(self, pipeline: str) -> LastMirror | None:
        """The newest confirmed write; None if no write was confirmed, or if it no longer counts as evidence."""

    def forget_mirrors(self, pipeline: str, topic: str | None = None) -> None:
        """From now on no earlier write is evidence, or none of this topic's offsets."""

    def due(self, pipeline: str) -> Sequence[DueReceipt]:
        """Receipts that no sink shows yet, in the order of their epochs."""

    def unpublished(self, pipeline: str) -> Mapping[str, int]:
        """By sink, how many committed epochs it does not show yet. Sinks that show all are left out."""

    def last_shown(self, pipeline: str, sink: str) -> int | None:
        """The newest epoch that a sink shows; None if it shows none."""

    def given_elsewhere(self, pipeline: str, sink: str, token: str, declared: Sequence[str]) -> tuple[str, int] | None:
        """A folder's former name, and the newest epoch that it has under that name after the attempt of this token.

        None if the folder ``sink`` was given the attempt itself, or no folder that is not ``declared`` was, or the
        attempt's epoch is the newest one.
        """

    def try_to_show(self, receipt: DueReceipt) -> bool:
        """Record that a publish begins with the receipt. Returns False if the sink shows it already."""

    def shown(self, receipt: DueReceipt, seconds: float | None, outbox: str | None) -> bool:
        """Record that the sink shows the epoch, after ``seconds`` if known, and delete its rows from a topic's outbox.

        Returns False if that was recorded already.
        """

    def completed(self, pipeline: str, epoch_id: int) -> Mapping[str, Committable]:
        """By sink, what was committed of an epoch; empty until every sink shows it."""

    def unannounced(self, pipeline: str) -> Sequence[AnnouncedReceipt]:
        """Receipts of shown epochs that Airflow has not acknowledged, oldest first."""

    def announce(self, pipeline: str, receipts: Sequence[AnnouncedReceipt], run: Run) -> None:
        """Record which run's task announces the receipts."""

    def acknowledge(self, pipeline: str, receipts: Sequence[AnnouncedReceipt]) -> None:
        """Record that Airflow has the receipts. Receipts that were never announced stay as they are."""
