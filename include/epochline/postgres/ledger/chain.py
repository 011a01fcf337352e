"""Committed ranges: the adapter behind `epochline.ports.Chain`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from epochline.postgres.queries.statements import run as execute
from epochline.protocol.epoch import Epoch
from epochline.protocol.log_ends import LogEnd
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition, joined


class PostgresChain:
    """The chain of each partition. Constraints of its table keep it without gaps and overlaps (INV-1)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        rows = execute(self._connection, "heads", pipeline=pipeline, generation=generation)
        return [
            Head(
                tp=TopicPartition(topic=row.topic, partition=row.partition, topic_id=row.topic_id),
                origin=row.origin,
                next_offset=row.next_offset,
                epoch_id=row.epoch_id,
                leader_epoch=row.leader_epoch,
                log_end=row.log_end,
            )
            for row in rows
        ]

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        rows = execute(self._connection, "reached", pipeline=pipeline, generation=generation, epoch_id=epoch_id)
        return [
            Head(
                tp=TopicPartition(topic=row.topic, partition=row.partition, topic_id=row.topic_id),
                origin=row.begins,
                next_offset=row.ends,
                leader_epoch=row.leader_epoch,
            )
            for row in rows
        ]

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        execute(
            self._connection, "write_origin",
            pipeline=pipeline, generation=generation, topic=origin.tp.topic, topic_id=origin.tp.topic_id,
            partition=origin.tp.partition, offset=origin.offset, chosen_by=origin.chosen_by,
            leader_epoch=origin.leader_epoch, same_log_until=origin.same_log_until,
        )  # fmt: skip

    def keep_log_ends(self, pipeline: str, ends: Sequence[LogEnd]) -> None:
        # In one order, so that two plans do not wait for each other's rows.
        ordered = sorted(ends, key=lambda one: one.tp)
        kept = [one.retention for one in ordered]
        execute(
            self._connection, "keep_log_ends",
            pipeline=pipeline, topics=[one.tp.topic for one in ordered],
            topic_ids=[one.tp.topic_id for one in ordered], partitions=[one.tp.partition for one in ordered],
            log_starts=[one.log_start for one in ordered], last_stables=[one.last_stable for one in ordered],
            cleanup_policies=[one and one.cleanup_policy for one in kept],
            retention_ms=[one and one.milliseconds for one in kept],
            retention_bytes=[one and one.bytes for one in kept],
        )  # fmt: skip

    def carry_over(
        self, pipeline: str, generation: int, head: Head, chosen_by: str, same_log_until: int | None = None
    ) -> None:
        begun = Origin(
            tp=head.tp, offset=head.origin, chosen_by=chosen_by, leader_epoch=head.leader_epoch,
            same_log_until=same_log_until,
        )  # fmt: skip
        self.write_origin(pipeline, generation, begun)
        self.link(pipeline, generation, head)

    def link(self, pipeline: str, generation: int, head: Head) -> None:
        """Write the committed offsets between the origin and the head as one range of this generation."""
        if head.next_offset > head.origin:
            execute(
                self._connection, "carry_over",
                pipeline=pipeline, generation=generation, topic=head.tp.topic, topic_id=head.tp.topic_id,
                partition=head.tp.partition, start_offset=head.origin, until_offset=head.next_offset,
                leader_epoch=head.leader_epoch,
            )  # fmt: skip

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        rows = execute(
            self._connection, "epochs_within",
            pipeline=pipeline, generation=generation, topic_id=tp.topic_id, partition=tp.partition,
            start=offsets.start, until=offsets.until,
        )  # fmt: skip
        return [row.epoch_id for row in rows]

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        moved = execute(
            self._connection, "advance_head",
            pipeline=epoch.pipeline, generation=epoch.generation, topic=planned.tp.topic,
            topic_id=planned.tp.topic_id, partition=planned.tp.partition, start_offset=planned.range.start,
            until_offset=planned.range.until, epoch_id=epoch.epoch_id, leader_epoch=planned.leader_epoch,
        )  # fmt: skip
        return moved.rowcount == 1

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        moved = execute(
            self._connection, "declare_lost",
            pipeline=pipeline, generation=generation, topic=lost.tp.topic, topic_id=lost.tp.topic_id,
            partition=lost.tp.partition, start_offset=lost.range.start, until_offset=lost.range.until,
            leader_epoch=lost.leader_epoch,
        )  # fmt: skip
        return moved.rowcount == 1

    def declare_gap(self, pipeline: str, tp: TopicPartition, hole: OffsetRange) -> None:
        execute(
            self._connection, "declare_gap",
            pipeline=pipeline, topic=tp.topic, topic_id=tp.topic_id, partition=tp.partition,
            start_offset=hole.start, until_offset=hole.until,
        )  # fmt: skip

    def declared_gaps(self, pipeline: str, tp: TopicPartition) -> Sequence[OffsetRange]:
        rows = execute(
            self._connection, "declared_gaps", pipeline=pipeline, topic_id=tp.topic_id, partition=tp.partition
        )  # fmt: skip
        return [OffsetRange(start=row.start_offset, until=row.until_offset) for row in rows]

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        return self._move_origin_back(epoch.pipeline, epoch.generation, planned, epoch.epoch_id, "extend back")

    def step_over(self, pipeline: str, generation: int, committed: PlannedRange) -> bool:
        return self._move_origin_back(pipeline, generation, committed, None, "carried over")

    def _move_origin_back(
        self, pipeline: str, generation: int, planned: PlannedRange, epoch_id: int | None, chosen_by: str
    ) -> bool:
        where = {
            "pipeline": pipeline, "generation": generation, "topic_id": planned.tp.topic_id,
            "partition": planned.tp.partition, "start_offset": planned.range.start,
            "until_offset": planned.range.until,
        }  # fmt: skip
        # Between the two statements the oldest range has no predecessor, so the key is checked after both.
        execute(self._connection, "defer_chain")
        if execute(self._connection, "move_origin_back", **where).rowcount != 1:
            return False
        execute(
            self._connection, "insert_before_origin", **where,
            topic=planned.tp.topic, epoch_id=epoch_id, chosen_by=chosen_by, leader_epoch=planned.leader_epoch,
        )  # fmt: skip
        execute(self._connection, "check_chain")
        return True

    def superseded(self, pipeline: str, generation: int, tp: TopicPartition) -> Sequence[OffsetRange] | None:
        rows = execute(
            self._connection, "superseded",
            pipeline=pipeline, generation=generation, topic_id=tp.topic_id, partition=tp.partition,
        ).all()  # fmt: skip
        if any(row.unknown for row in rows):
            return None
        return joined(OffsetRange(start=row.start_offset, until=row.until) for row in rows)

    def cut_since(self, pipeline: str, generation: int, tp: TopicPartition) -> int | None:
        found: int | None = execute(
            self._connection, "cut_since",
            pipeline=pipeline, generation=generation, topic_id=tp.topic_id, partition=tp.partition,
        ).scalar_one()  # fmt: skip
        return found
