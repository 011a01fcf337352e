"""Kafka, as far as planning needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from epochline.declare.source import KafkaSource
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.planning import SourceView


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredOffset:
    """What a consumer group holds for a partition: an offset, and the epoch that wrote it, if it was a mirror."""

    offset: int
    generation: int | None = None
    epoch_id: int | None = None
    token: str | None = None
    """Of the attempt that the epoch was committed by; None where a version wrote it that kept none."""


class OffsetSource(Protocol):
    """Kafka, as far as planning needs it. Reads no record."""

    def look(self, source: KafkaSource) -> SourceView:
        """Partitions, offsets, topic ids and leader epochs of the topics that the source matches now.

        Raises:
            SourceUnavailableError: Kafka does not answer, or a partition has no leader.
            SourceError: a topic that the declaration names does not exist.
        """

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        """Per partition the first offset whose timestamp is at or after the moment.

        None where there is none below the last stable offset. A moment has the resolution of Kafka's timestamps:
        what is finer than a millisecond is rounded up, so that no earlier record is taken in.
        """

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Per partition the offset up to which its log goes back to leaders of this epoch or an earlier one.

        None where the log knows no leader of this epoch or a later one, so that it cannot be the log in which the epoch
        was seen. A head beyond the answer means that the log was truncated below it (trap 11).
        """

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        """What the consumer group holds, per topic and partition."""

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None
    ) -> None:
        """Write the heads to the consumer group, for monitors (S5, S11), with the newest epoch and its token."""

    def forget(self, group: str) -> None:
        """Delete the consumer group, which nobody mirrors into any more; nothing where there is none.

        Raises:
            SourceUnavailableError: Kafka does not answer.
            SourceError: Kafka refuses, because somebody consumes with the group.
        """
