"""The chain: the committed ranges of every partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from epochline.protocol.epoch import Epoch
from epochline.protocol.log_ends import LogEnd
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition


class Chain(Protocol):
    """The committed ranges (INV-1)."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        """Every partition's head, sorted. A partition with nothing committed has its origin as head."""

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        """Every partition's head as it was right after an epoch's commit."""

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        """Write where a partition begins. Does nothing if the partition has an origin."""

    def keep_log_ends(self, pipeline: str, ends: Sequence[LogEnd]) -> None:
        """Store where logs begin and end, for people, and how long Kafka keeps them where that is known.

        Rows of partitions that Kafka no longer has stay. Nothing is stored for a pipeline that has never planned.
        """

    def carry_over(
        self, pipeline: str, generation: int, head: Head, chosen_by: str, same_log_until: int | None = None
    ) -> None:
        """Begin a new generation's partition with what earlier ones committed: its origin and one link to its head.

        If origin and head are equal, nothing was committed, and only the origin is written. ``same_log_until`` is as in
        `epochline.protocol.offsets.Origin`.
        """

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        """Ids of the epochs that committed any of these offsets, in order."""

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: append the range if it starts at the head. Returns whether it did."""

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        """Compare-and-swap: move the origin back over the range if it ends there. Returns whether it did."""

    def superseded(self, pipeline: str, generation: int, tp: TopicPartition) -> Sequence[OffsetRange] | None:
        """What earlier generations committed of today's log before its origin in this one; sorted, and joined.

        Ranges that a restore undid do not count, nor do offsets that the log lost since. None if it is unknown where
        the log was cut off, because an older version adopted it.
        """

    def cut_since(self, pipeline: str, generation: int, tp: TopicPartition) -> int | None:
        """Where the log was cut off, as the adoptions of later generations recorded it; None if nowhere.

        What the generation knows of offsets beyond is of another log, whatever Kafka's leader epochs show.
        """

    def step_over(self, pipeline: str, generation: int, committed: PlannedRange) -> bool:
        """Compare-and-swap: move the origin back over a range of `superseded` that ends there, as a carried link.

        Returns whether it did.
        """

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        """Move the head over a range that no epoch will read (INV-9), if it starts there. Returns whether it did."""

    def declare_gap(self, pipeline: str, tp: TopicPartition, hole: OffsetRange) -> None:
        """Record a hole in a log as lost: an epoch that reads past it balances (INV-9)."""

    def declared_gaps(self, pipeline: str, tp: TopicPartition) -> Sequence[OffsetRange]:
        """The holes that were declared lost."""
