"""The chain: the committed ranges of every partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition


class Chain(Protocol):
    """The committed ranges (INV-1)."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        """Every partition's head, also of those that have only their origin; sorted."""

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        """Every partition's head as it was once an epoch was committed, and none after it."""

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        """Write where a partition begins; nothing where it has an origin already."""

    def carry_over(self, pipeline: str, generation: int, head: Head, chosen_by: str) -> None:
        """Begin a generation's partition with what earlier ones committed of it: its origin, and one link to its head.

        Where origin and head are the same, nothing of it was committed and only the origin is written.
        """

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        """Ids of the epochs that committed any of these offsets, in order."""

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: append the range if it starts at the head; False where it does not."""

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: put the range before the origin, which moves back; False where it does not end there."""

    def superseded_until(self, pipeline: str, generation: int, tp: TopicPartition) -> int:
        """How far earlier generations committed this very log before its origin in this one; 0 where they did not.

        What a restore undid was not committed.
        """

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        """Move the head over a range that no epoch will ever read (INV-9); False where it does not start there."""
