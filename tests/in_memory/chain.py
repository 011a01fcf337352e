"""Committed ranges in memory."""

from collections.abc import Sequence

from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head, OffsetRange, Origin, PlannedRange, TopicPartition, joined
from epochline.protocol.planning import LogEnd
from tests.in_memory.rows import Side


class FakeChain(Side):
    """Implements `epochline.ports.Chain`."""

    def heads(self, pipeline: str, generation: int) -> Sequence[Head]:
        found = []
        for (name, number, tp), links in self.rows.chains.items():
            if (name, number) == (pipeline, generation):
                _, until, epoch_id = max(links, key=lambda link: link[1])
                leader_epoch = self.rows.leader_epochs.get((name, number, tp))
                seen = None if epoch_id is None else self.rows.planned_ends.get((name, epoch_id, tp))
                found.append(
                    Head(
                        tp=tp, origin=links[0][1], next_offset=until, epoch_id=epoch_id, leader_epoch=leader_epoch,
                        log_end=seen,
                    )
                )  # fmt: skip
        return sorted(found, key=lambda head: head.tp)

    def reached(self, pipeline: str, generation: int, epoch_id: int) -> Sequence[Head]:
        found = []
        for (name, number, tp), links in self.rows.chains.items():
            if (name, number) == (pipeline, generation):
                then = [(start, until) for start, until, by in links if by is None or by <= epoch_id]
                ends = max(until for _, until in then)
                begins = min((start for start, _ in then if start is not None), default=ends)
                leader_epoch = self.rows.leader_epochs.get((name, number, tp))
                found.append(Head(tp=tp, origin=begins, next_offset=ends, leader_epoch=leader_epoch))
        return found

    def write_origin(self, pipeline: str, generation: int, origin: Origin) -> None:
        key = (pipeline, generation, origin.tp)
        if key not in self.rows.chains:
            self.rows.chains[key] = [(None, origin.offset, None)]
            self.rows.leader_epochs[key] = origin.leader_epoch

    def keep_log_ends(self, pipeline: str, ends: Sequence[LogEnd]) -> None:
        self.rows.log_ends |= {(pipeline, one.tp): one.last_stable for one in ends}

    def carry_over(
        self, pipeline: str, generation: int, head: Head, chosen_by: str, same_log_until: int | None = None
    ) -> None:
        begun = Origin(tp=head.tp, offset=head.origin, chosen_by=chosen_by, leader_epoch=head.leader_epoch)
        self.write_origin(pipeline, generation, begun)
        if head.next_offset > head.origin:
            self.rows.chains[pipeline, generation, head.tp].append((head.origin, head.next_offset, None))
        self.rows.cuts[pipeline, generation, head.tp] = same_log_until

    def epochs_within(self, pipeline: str, generation: int, tp: TopicPartition, offsets: OffsetRange) -> Sequence[int]:
        return [
            epoch_id
            for start, until, epoch_id in self.rows.chains[pipeline, generation, tp]
            if start is not None and epoch_id is not None and start < offsets.until and until > offsets.start
        ]

    def advance(self, epoch: Epoch, planned: PlannedRange) -> bool:
        moved = self._move_head(epoch.pipeline, epoch.generation, planned, epoch.epoch_id)
        if moved:
            self.rows.leader_epochs[epoch.pipeline, epoch.generation, planned.tp] = planned.leader_epoch
        return moved

    def _move_head(self, pipeline: str, generation: int, planned: PlannedRange, epoch_id: int | None) -> bool:
        links = self.rows.chains[pipeline, generation, planned.tp]
        if max(until for _, until, _ in links) != planned.range.start:
            return False
        links.append((planned.range.start, planned.range.until, epoch_id))
        return True

    def extend_back(self, epoch: Epoch, planned: PlannedRange) -> bool:
        return self._move_origin_back(epoch.pipeline, epoch.generation, planned, epoch.epoch_id)

    def step_over(self, pipeline: str, generation: int, committed: PlannedRange) -> bool:
        return self._move_origin_back(pipeline, generation, committed, None)

    def _move_origin_back(self, pipeline: str, generation: int, planned: PlannedRange, epoch_id: int | None) -> bool:
        links = self.rows.chains[pipeline, generation, planned.tp]
        if links[0][1] != planned.range.until:
            return False
        links[0] = (None, planned.range.start, None)
        links.append((planned.range.start, planned.range.until, epoch_id))
        return True

    def superseded(self, pipeline: str, generation: int, tp: TopicPartition) -> Sequence[OffsetRange] | None:
        origin = self.rows.chains[pipeline, generation, tp][0][1]
        cuts = {
            number: cut
            for (name, number, of), cut in self.rows.cuts.items()
            if (name, of) == (pipeline, tp) and number <= generation and cut is not None
        }
        found = []
        for (name, of_generation, of), links in self.rows.chains.items():
            if (name, of) != (pipeline, tp) or of_generation >= generation:
                continue
            end = min((cut for number, cut in cuts.items() if number > of_generation), default=origin)
            for start, until, epoch_id in links:
                if start is not None and epoch_id is not None and start < min(end, origin):
                    found.append(OffsetRange(start=start, until=min(until, end, origin)))
        return joined(found)

    def cut_since(self, pipeline: str, generation: int, tp: TopicPartition) -> int | None:
        found = [
            cut
            for (name, number, of), cut in self.rows.cuts.items()
            if (name, of) == (pipeline, tp) and number > generation and cut is not None
        ]
        return min(found, default=None)

    def declare_lost(self, pipeline: str, generation: int, lost: PlannedRange) -> bool:
        return self._move_head(pipeline, generation, lost, None)

    def declare_gap(self, pipeline: str, tp: TopicPartition, hole: OffsetRange) -> None:
        self.rows.declared_gaps.setdefault((pipeline, tp), []).append(hole)

    def declared_gaps(self, pipeline: str, tp: TopicPartition) -> Sequence[OffsetRange]:
        return self.rows.declared_gaps.get((pipeline, tp), [])
