"""The source, as far as planning needs it."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from epochline.declare.inputs import DeclaredSource
from epochline.declare.source import KafkaSource
from epochline.protocol.balances import LogGaps
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head, PlannedRange, TopicPartition
from epochline.protocol.planning import LogEnd, SourceView


class OffsetSource(Protocol):
    """Kafka, or a source of the user's own, as far as planning and the seal need it.

    A source without batches, leaders and consumer groups inherits the answers to questions about them. Every method
    raises `SourceUnavailableError` if the source does not answer, and `SourceError` if it refuses.
    """

    def look(self, source: DeclaredSource) -> SourceView:
        """Partitions, offsets, topic ids and leader epochs of the topics that the source matches now.

        Raises:
            SourceUnavailableError: a partition has no leader.
            SourceError: a topic that the declaration names does not exist.
        """

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], int]:
        """The number of records in each range, by topic and partition, if the source proves a read by counting.

        Empty if the offsets alone prove it, as Kafka's do.
        """

    def gaps(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], LogGaps]:
        """Which offsets of the ranges can give no record, by topic and partition, as the batches of the log say.

        Reads the batches, so it costs as much as a read. The ranges end at the last stable offset or before it.
        """
        return {}

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        """The last stable offset of every partition that one of the sources matches now, and that has a leader.

        A topic that does not exist is left out. Cheaper than `look`: the number of requests does not depend on the
        number of sources.
        """

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        """Begin, end and retention of the logs of the same partitions, as cheaply."""

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        """Per partition the first offset with a timestamp at or after the moment.

        None if there is none below the last stable offset. Kafka's timestamps are in milliseconds: a finer moment is
        rounded up, so that no earlier record is included.
        """

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Per partition the offset up to which its log goes back to leaders of this epoch or an earlier one.

        None if the log knows no leader of this epoch or a later one: it is not the log in which the epoch was seen.
        A head beyond the returned offset means that the log was truncated below it.
        """
        return {}

    def confirm(self, group: str) -> None:
        """Ask every broker whether the last answers of this source, and of a group, are those of the whole cluster.

        A broker that the network cuts off from the others goes on to answer, and shows logs and groups as they were.

        Raises:
            SourceUnavailableError: a broker knows a newer leader or another coordinator, or most do not answer.
        """
        return

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        """The consumer group's offsets, per topic and partition."""
        return {}

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None,
        number: int | None = None,
    ) -> None:  # fmt: skip
        """Write the heads to the group, for monitors, with newest epoch, token and the number of `begin_mirror`."""
        return

    def group_retention(self) -> timedelta | None:
        """How long Kafka keeps the offsets of a group without members; None if it does not say."""
        return None

    def forget(self, group: str) -> None:
        """Delete the consumer group of a dropped pipeline, which no consumer may use. Does nothing without a group."""
        return
