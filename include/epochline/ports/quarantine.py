"""Quarantined records and their requeue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from epochline.protocol.epoch import Epoch
from epochline.protocol.staging import StagedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Quarantined records of a generation that were not requeued and match every field that is set."""

    generation: int
    epoch_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str | None = None
    """An SQL LIKE pattern."""


Claims = Mapping[tuple[str, int], int]
"""Numbers of quarantined records per topic and partition."""


class Quarantine(Protocol):
    """Quarantined records that a requeue epoch reads again, each once."""

    def selected(self, pipeline: str, selection: Selection) -> Claims:
        """How many records match the selection now."""

    def claim_records(self, epoch: Epoch, selection: Selection) -> int:
        """Assign the selected records to the epoch, permanently (INV-3). Returns their number."""

    def claims(self, epoch: Epoch) -> Claims:
        """How many records the epoch reads."""

    def claims_are_free(self, epoch: Epoch) -> bool:
        """Whether no other epoch has requeued any of the epoch's records."""

    def requeue(self, staged: StagedTable, epoch: Epoch) -> tuple[int, int]:
        """In the commit: mark the epoch's records requeued. Records that failed again stay, with the new reason.

        Returns:
            How many were requeued, and how many stayed.
        """
