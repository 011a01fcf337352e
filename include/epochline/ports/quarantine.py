"""Quarantined records and their requeue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which quarantined records: those of a generation that were not requeued and fit everything that is given."""

    generation: int
    epoch_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None
    """A pattern of SQL's LIKE."""


Claims = Mapping[tuple[str, int], int]
"""How many quarantined records, per topic and partition."""


class Quarantine(Protocol):
    """Quarantined records that a requeue epoch reads again, each once."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        """How many records fit the selection now."""

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        """Note that the epoch reads the selected records; how many. Written with the epoch, never changed (INV-3)."""

    def claims(self, epoch: Epoch) -> Claims:
        """How many records the epoch reads."""

    def claims_are_free(self, epoch: Epoch) -> bool:
        """Whether none of the epoch's records was requeued by another epoch meanwhile."""

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        """In the commit: mark the epoch's records requeued, but those that failed again, which get the new reason.

        Returns:
            How many were requeued, and how many stay.
        """
