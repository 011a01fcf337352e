"""Extend back: commit what lies before a pipeline's origin, in contiguous steps towards the past."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import Field, field_validator

from epochline.coordinator.intent import EpochDraft, limit_place
from epochline.coordinator.takeover import shown_back_to
from epochline.operations.action import ActionPreview, Case, Parameters, Subject, refused
from epochline.operations.epoch_action import EpochAction
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.epoch import Epoch, EpochKind, moment_of
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, TopicPartition, left_out, moved_clusters
from epochline.protocol.planning import SourceView, share_limit

EARLIEST = "earliest"


class ExtendBackParameters(Parameters):
    """How far back, and in which steps."""

    to: str = Field(
        description="earliest, an offset (of every partition), or a time in ISO 8601 (UTC without a zone).",
        json_schema_extra={"argument": True},
    )
    step: int | None = Field(None, ge=1, description="Most offsets in an epoch; the declared limit if not given.")

    @field_validator("to")
    @classmethod
    def _is_a_place(cls, to: str) -> str:
        if to != EARLIEST and not to.isdigit():
            try:
                moment_of(to)
            except ValueError:
                raise ValueError("give earliest, an offset or a time in ISO 8601") from None
        return to

    @property
    def moment(self) -> datetime | None:
        """The time, if ``to`` is one."""
        if self.to == EARLIEST or self.to.isdigit():
            return None
        return moment_of(self.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Kafka's logs, and the offset of the requested time in each; None if the log ends before that time."""

    view: SourceView
    at: Mapping[TopicPartition, int | None]


class ExtendBack(EpochAction[ExtendBackParameters, Past]):
    """Commit the records before the origin of PIPELINE, back to TO. Each epoch ends at the origin and moves it back;
    heads do not move. Only for targets of mode append and add.
    """

    name = "extend-back"
    parameters = ExtendBackParameters
    repeats = True

    def look(self, subject: Subject, parameters: ExtendBackParameters) -> Past:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        moment = parameters.moment
        at = {} if moment is None else source.offsets_at([partition.tp for partition in view.partitions], moment)
        return Past(view=view, at=at)

    def describe(self, case: Case[ExtendBackParameters, Past]) -> ActionPreview:
        declared, name, parameters = case.declared, case.pipeline, case.parameters
        ordered = [str(sink) for sink in declared.targets if sink.mode not in ("append", "add")]
        ordered += [str(topic) for topic in declared.topics]
        if ordered:
            return refused(
                f"{', '.join(ordered)}: only rows of mode append and add do not depend on the order in which epochs are"
                " committed. Read the past with a pipeline of its own."
            )
        if declared.states:
            return refused(f"{name} keeps state, which goes forward only. Read the past with a pipeline of its own.")
        row = case.row
        if row is None or moved_clusters(row.cluster_id, case.seen.view.cluster_id):
            return refused(f"{name}: its connection leads to another Kafka cluster.")
        pasts = _pasts(case, row)
        gone = [f"{past.head.tp} begins at {past.log_start}" for past in pasts if past.asked < past.log_start]
        if gone and parameters.to.isdigit():
            return refused(f"{name}: the source no longer holds offset {parameters.to}: {', '.join(gone)}.")
        unknown = next((past.head for past in pasts if past.committed is None and past.begins < past.head.origin), None)
        if unknown is not None:
            return refused(
                f"{unknown.tp}: an older version adopted its log at the end and did not write down where it was cut"
                f" off, so it is unknown which offsets before {unknown.origin} are committed. Read the past with"
                " another pipeline."
            )
        left = {past.head: past.left for past in pasts if past.left}
        if not left:
            return refused(
                f"{name}: nothing that is not committed lies between {parameters.to} and its origins; they are"
                " back there."
            )
        total = sum(len(span) for ranges in left.values() for span in ranges)
        epochs = -(-total // (parameters.step or declared.source.records_per_epoch))
        return ActionPreview(
            epochs=epochs,
            lines=(
                *(
                    committing_back(head.tp, f"offsets {', '.join(map(str, ranges))}")
                    + ("; the others are already" if sum(map(len, ranges)) < head.origin - ranges[0].start else "")
                    for head, ranges in left.items()
                ),
                f"{total} offsets in {epochs} epoch{'' if epochs == 1 else 's'}; heads do not move",
            ),
            before={"origins": {str(head.tp): head.origin for head in left}},
            after={"origins": {str(head.tp): ranges[0].start for head, ranges in left.items()}},
        )

    def draft(self, case: Case[ExtendBackParameters, Past], row: PipelineRow) -> EpochDraft:
        tx, name, chosen = case.tx, case.pipeline, case.parameters.step
        step = chosen or case.declared.source.records_per_epoch
        place = "step of the action" if chosen else limit_place(case.declared)
        back = []
        for past in _pasts(case, row):
            if not past.left:
                continue
            head, newest = past.head, past.left[-1]
            if newest.until < head.origin:
                committed = OffsetRange(start=newest.until, until=head.origin)
                link = PlannedRange(tp=head.tp, range=committed, leader_epoch=head.leader_epoch)
                tx.chain.step_over(name, row.generation, link)
                head = replace(head, origin=newest.until)
            back.append((head, newest.start))
        shown = shown_back_to(tx.receipts.accepted(name), [head for head, _ in back])
        if shown:
            # A sink shows all of an epoch or nothing of it: mixing both kinds of partition would split it.
            back = [(head, max(start, shown[head.tp])) for head, start in back if head.tp in shown]
        return EpochDraft(
            kind=EpochKind.EXTEND_BACK, ranges=_last_ranges(back, step), record_limit=step, limit_from=place
        )

    def cannot_reopen(self, tx: Transaction, own: Epoch, seen: Past) -> str | None:
        if own.kind is not EpochKind.EXTEND_BACK:
            return f"it extends nothing back, it is {own.kind}"
        origins = {head.tp: head.origin for head in tx.chain.heads(own.pipeline, own.generation)}
        views = {partition.tp: partition for partition in seen.view.partitions}
        for planned in tx.epochs.ranges(own):
            now = views.get(planned.tp)
            if origins.get(planned.tp) != planned.range.until:
                return f"the origin of {planned.tp} is {origins.get(planned.tp)}, not {planned.range.until}"
            if now is None or now.leader_epoch != planned.leader_epoch or now.log_start > planned.range.start:
                return f"the source no longer holds {planned}, or its leader changed"
        return None


def committing_back(partition: object, offsets: str) -> str:
    """What happens to offsets before an origin, for page and terminal."""
    return f"{partition}: {offsets} are committed, the newest first"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionPast:
    """What lies before the origin of a partition.

    ``asked`` is where the partition is to begin. ``committed`` is what earlier generations committed of the log that it
    has now; None if that is unknown.
    """

    head: Head
    asked: int
    log_start: int
    committed: Sequence[OffsetRange] | None

    @property
    def begins(self) -> int:
        """The first offset that may be committed."""
        return max(self.asked, self.log_start)

    @property
    def left(self) -> list[OffsetRange]:
        """The offsets to commit."""
        if self.begins >= self.head.origin:
            return []
        return left_out(OffsetRange(start=self.begins, until=self.head.origin), self.committed or ())


def _pasts(case: Case[ExtendBackParameters, Past], row: PipelineRow) -> list[_PartitionPast]:
    parameters, seen = case.parameters, case.seen
    views = {partition.tp: partition for partition in seen.view.partitions}
    pasts = []
    for head in case.heads:
        view = views.get(head.tp)
        if view is None or not case.declared.source.keeps(head.tp.topic):
            continue
        if parameters.to == EARLIEST:
            asked = view.log_start
        elif parameters.moment is None:
            asked = int(parameters.to)
        else:
            offset = seen.at.get(head.tp)
            asked = head.origin if offset is None else offset
        pasts.append(
            _PartitionPast(
                head=replace(head, leader_epoch=view.leader_epoch), asked=asked, log_start=view.log_start,
                # What an earlier generation committed of the same log is not committed a second time.
                committed=case.tx.chain.superseded(case.pipeline, row.generation, head.tp),
            )
        )  # fmt: skip
    return pasts


def _last_ranges(back: Sequence[tuple[Head, int]], step: int) -> list[PlannedRange]:
    """The next epoch: from each origin towards where its partition is to begin in the end, ``step`` offsets in all."""
    left = {head.tp: head.origin - start for head, start in back if start < head.origin}
    if not left:
        return []
    shares = share_limit(left, step, sorted(left))
    return [
        PlannedRange(
            tp=head.tp,
            range=OffsetRange(start=head.origin - shares[head.tp], until=head.origin),
            leader_epoch=head.leader_epoch,
        )
        for head, _ in sorted(back, key=lambda pair: pair[0].tp)
        if shares.get(head.tp, 0) > 0
    ]
