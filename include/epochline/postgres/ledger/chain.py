"""Committed ranges: the adapter behind `epochline.ports.Chain`."""

from collections.abc import Sequence
from dataclasses import asdict

from epochline.declare.event_time import PartitionTime
from epochline.errors import LedgerError
from epochline.postgres.ledger.rows import offsets, partition, range_values
from epochline.postgres.queries.statements import InTransaction, change
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition, joined
from epochline.protocol.planning import LogEnd

_NO_TIME = PartitionTime()


class PostgresChain(InTransaction):
    """The chain of each partition. Constraints of its table keep it without gaps and overlaps (INV-1)."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        rows = list(self._run("heads", pipeline=pipeline, generation=generation))
        for row in rows:
            if row.planned not in (None, row.next_offset):
                raise LedgerError(
                    f"{pipeline}: the ledger contradicts itself: epoch {row.epoch_id} was planned up to offset"
                    f" {row.planned} of {row.topic}-{row.partition}, and its head is {row.next_offset}. A value was"
                    " changed past the ledger's rules, or rotted. Nothing was planned. The command shows such places.",
                    f"audit {pipeline}",
                )
        return [
            Head(
                tp=partition(row), origin=row.origin, next_offset=row.next_offset, epoch_id=row.epoch_id,
                leader_epoch=row.leader_epoch, log_end=row.log_end,
            )
            for row in rows
        ]  # fmt: skip

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        return [
            Head(tp=partition(row), origin=row.begins, next_offset=row.ends, leader_epoch=row.leader_epoch)
            for row in self._run("reached", pipeline=pipeline, generation=generation, epoch_id=epoch_id)
        ]

    def write_origin(self, pipeline: str, generation: int, origin: Origin, time: PartitionTime = _NO_TIME) -> None:
        self._run(
            "write_origin",
            pipeline=pipeline, generation=generation, **asdict(origin.tp), offset=origin.offset,
            chosen_by=origin.chosen_by, leader_epoch=origin.leader_epoch, same_log_until=origin.same_log_until,
            **asdict(time),
        )  # fmt: skip

    def keep_log_ends(self, pipeline: str, ends: Sequence[LogEnd]) -> None:
        # In one order, so that two plans do not wait for each other's rows.
        ordered = sorted(ends, key=lambda end: end.tp)
        retentions = [end.retention for end in ordered]
        self._run(
            "keep_log_ends",
            pipeline=pipeline, topics=[end.tp.topic for end in ordered],
            topic_ids=[end.tp.topic_id for end in ordered], partitions=[end.tp.partition for end in ordered],
            log_starts=[end.log_start for end in ordered], last_stables=[end.last_stable for end in ordered],
            cleanup_policies=[retention and retention.cleanup_policy for retention in retentions],
            retention_ms=[retention and retention.milliseconds for retention in retentions],
            retention_bytes=[retention and retention.bytes for retention in retentions],
        )  # fmt: skip

    def carry_over(
        self,
        pipeline: str,
        generation: int,
        head: Head,
        chosen_by: str,
        same_log_until: int | None = None,
        time: PartitionTime = _NO_TIME,
    ) -> None:
        begun = Origin(
            tp=head.tp, offset=head.origin, chosen_by=chosen_by, leader_epoch=head.leader_epoch,
            same_log_until=same_log_until,
        )  # fmt: skip
        self.write_origin(pipeline, generation, begun, time)
        if head.next_offset > head.origin:
            committed = OffsetRange(start=head.origin, until=head.next_offset)
            carried = PlannedRange(tp=head.tp, range=committed, leader_epoch=head.leader_epoch)
            self._insert("insert_range", pipeline, generation, carried, "carried over")

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        where = {"pipeline": pipeline, "generation": generation, **asdict(tp), **asdict(offsets)}
        return list(self._run("epochs_within", **where).scalars())

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        return self._insert("advance_head", epoch.pipeline, epoch.generation, planned, "epoch", epoch.epoch_id)

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        return self._insert("advance_head", pipeline, generation, lost, "declared loss")

    def _insert(
        self,
        statement: str,
        pipeline: str,
        generation: int,
        committed: PlannedRange,
        chosen_by: str,
        epoch_id: int | None = None,
    ) -> bool:
        values = {**range_values(committed), "chosen_by": chosen_by, "epoch_id": epoch_id}
        return self._run(statement, pipeline=pipeline, generation=generation, **values).rowcount == 1

    def declare_gap(self, pipeline: str, tp: TopicPartition, hole: OffsetRange) -> None:
        self._run("declare_gap", pipeline=pipeline, **asdict(tp), **asdict(hole))

    def declared_gaps(self, pipeline: str, tp: TopicPartition) -> Sequence[OffsetRange]:
        return list(map(offsets, self._run("declared_gaps", pipeline=pipeline, **asdict(tp))))

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        return self._move_origin_back(epoch.pipeline, epoch.generation, planned, "extend back", epoch.epoch_id)

    def step_over(self, pipeline: str, generation: int, committed: PlannedRange) -> bool:
        return self._move_origin_back(pipeline, generation, committed, "carried over")

    def _move_origin_back(
        self, pipeline: str, generation: int, planned: PlannedRange, chosen_by: str, epoch_id: int | None = None
    ) -> bool:
        # Between the two statements the oldest range has no predecessor, so the key is checked after both.
        change(self._connection, "SET CONSTRAINTS epochline.starts_where_one_ended DEFERRED")
        where = {"pipeline": pipeline, "generation": generation, **range_values(planned)}
        if self._run("move_origin_back", **where).rowcount != 1:
            return False
        self._insert("insert_range", pipeline, generation, planned, chosen_by, epoch_id)
        change(self._connection, "SET CONSTRAINTS epochline.starts_where_one_ended IMMEDIATE")
        return True

    def superseded(self, pipeline: str, generation: int, tp: TopicPartition) -> Sequence[OffsetRange] | None:
        rows = self._run("superseded", pipeline=pipeline, generation=generation, **asdict(tp))
        return None if any(row.unknown for row in rows) else joined(map(offsets, rows))

    def cut_since(self, pipeline: str, generation: int, tp: TopicPartition) -> int | None:
        cut: int | None = self._run("cut_since", pipeline=pipeline, generation=generation, **asdict(tp)).scalar_one()
        return cut
