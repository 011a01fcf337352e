"""Extend back: commit what lies before a pipeline's origin, in contiguous steps towards the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import Field, field_validator

from epochline.coordinator.checks import is_read
from epochline.coordinator.intent import EpochDraft, limit_place
from epochline.coordinator.takeover import shown_back_to
from epochline.operations.action import ActionPreview, Parameters, Subject, refused
from epochline.operations.epoch_action import EpochAction
from epochline.ports import PipelineRow, Transaction
from epochline.protocol.clusters import moved_clusters
from epochline.protocol.epoch import Epoch, EpochKind
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, TopicPartition
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
                datetime.fromisoformat(to)
            except ValueError:
                raise ValueError("give earliest, an offset or a time in ISO 8601") from None
        return to

    @property
    def moment(self) -> datetime | None:
        """The time, if ``to`` is one."""
        if self.to == EARLIEST or self.to.isdigit():
            return None
        moment = datetime.fromisoformat(self.to)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Kafka's logs, and the offset of the requested time in each; None if the log ends before that time."""

    view: SourceView
    at: Mapping[TopicPartition, int | None]


class ExtendBack(EpochAction[ExtendBackParameters, Past]):
    """Commit ``[x, origin)`` in epochs that each end at the origin."""

    name = "extend-back"
    help = (
        "Commit what lies before the origin of PIPELINE, back to TO, in epochs that each end at the origin and move it"
        " back. Heads do not move. Only for targets of mode append and add."
    )
    parameters = ExtendBackParameters
    repeats = True

    def look(self, subject: Subject, parameters: ExtendBackParameters) -> Past:
        declared, source = subject.declaration()
        view = source.look(declared.source)
        moment = parameters.moment
        at = {} if moment is None else source.offsets_at([one.tp for one in view.partitions], moment)
        return Past(view=view, at=at)

    def describe(
        self, tx: Transaction, subject: Subject, parameters: ExtendBackParameters, seen: Past
    ) -> ActionPreview:
        declared, _ = subject.declaration()
        ordered = [str(sink) for sink in declared.targets if sink.mode not in ("append", "add")]
        ordered += [str(topic) for topic in declared.topics]
        if ordered:
            return refused(
                f"{', '.join(ordered)}: only rows of mode append and add do not depend on the order in which epochs are"
                " committed. Read the past with a pipeline of its own."
            )
        if declared.states:
            return refused(
                f"{subject.name} keeps state, which goes forward only. Read the past with a pipeline of its own."
            )
        row = tx.epochs.pipeline(subject.name)
        if row is None or moved_clusters(row.cluster_id, seen.view.cluster_id):
            return refused(f"{subject.name}: its connection leads to another Kafka cluster.")
        begins = self._begins(tx, subject, parameters, seen, row)
        gone = [
            f"{head.tp} begins at {log_start}"
            for head, x, log_start in begins
            if x < log_start and parameters.to.isdigit()
        ]
        if gone:
            return refused(f"{subject.name}: the source no longer holds offset {parameters.to}: {', '.join(gone)}.")
        back = [(head, max(x, log_start)) for head, x, log_start in begins if max(x, log_start) < head.origin]
        if not back:
            return refused(
                f"{subject.name}: nothing lies between {parameters.to} and its origins; they are back there."
            )
        total = sum(head.origin - x for head, x in back)
        epochs = -(-total // (parameters.step or declared.source.records_per_epoch))
        return ActionPreview(
            epochs=epochs,
            lines=(
                *(f"{head.tp}: offsets [{x}, {head.origin}) are committed, the newest first" for head, x in back),
                f"{total} offsets in {epochs} epoch{'' if epochs == 1 else 's'}; heads do not move",
            ),
            before={"origins": {str(head.tp): head.origin for head, _ in back}},
            after={"origins": {str(head.tp): x for head, x in back}},
        )

    def draft(
        self, tx: Transaction, subject: Subject, parameters: ExtendBackParameters, seen: Past, row: PipelineRow
    ) -> EpochDraft:
        declared, _ = subject.declaration()
        step = parameters.step or declared.source.records_per_epoch
        place = "step of the action" if parameters.step else limit_place(declared)
        begins = self._begins(tx, subject, parameters, seen, row)
        back = [(head, max(x, log_start)) for head, x, log_start in begins]
        shown = shown_back_to(tx.receipts.accepted(subject.name), [head for head, _ in back])
        if shown:
            # A sink shows all of an epoch or nothing of it: mixing both kinds of partition would split it.
            back = [(head, max(x, shown[head.tp])) for head, x in back if head.tp in shown]
        return EpochDraft(
            kind=EpochKind.EXTEND_BACK, ranges=last_ranges(back, step), record_limit=step, limit_from=place
        )

    def cannot_reopen(self, tx: Transaction, own: Epoch, seen: Past) -> str | None:
        if own.kind is not EpochKind.EXTEND_BACK:
            return f"it extends nothing back, it is {own.kind}"
        origins = {head.tp: head.origin for head in tx.chain.heads(own.pipeline, own.generation)}
        views = {one.tp: one for one in seen.view.partitions}
        for planned in tx.epochs.ranges(own):
            now = views.get(planned.tp)
            if origins.get(planned.tp) != planned.range.until:
                return f"the origin of {planned.tp} is {origins.get(planned.tp)}, not {planned.range.until}"
            if now is None or now.leader_epoch != planned.leader_epoch or now.log_start > planned.range.start:
                return f"the source no longer holds {planned}, or its leader changed"
        return None

    def _begins(
        self, tx: Transaction, subject: Subject, parameters: ExtendBackParameters, seen: Past, row: PipelineRow
    ) -> list[tuple[Head, int, int]]:
        """Per partition its head, the requested beginning, and the first offset that may be committed."""
        declared, _ = subject.declaration()
        views = {one.tp: one for one in seen.view.partitions}
        begins = []
        for head in tx.chain.heads(subject.name, row.generation):
            view = views.get(head.tp)
            if view is None or not is_read(declared, head):
                continue
            # What an earlier generation committed of the same log is not committed a second time.
            first = max(view.log_start, tx.chain.superseded_until(subject.name, row.generation, head.tp))
            if parameters.to == EARLIEST:
                x = first
            elif parameters.moment is None:
                x = int(parameters.to)
            else:
                found = seen.at.get(head.tp)
                x = head.origin if found is None else found
            begins.append((replace(head, leader_epoch=view.leader_epoch), x, first))
        return begins


def last_ranges(back: Sequence[tuple[Head, int]], step: int) -> list[PlannedRange]:
    """The next epoch on the way back: from each origin towards ``x``, ``step`` offsets in all.

    Args:
        back: heads, each with the offset that its partition is to begin at in the end.
        step: most offsets, > 0, shared in proportion to what is left.
    """
    left = {head.tp: head.origin - x for head, x in back if x < head.origin}
    if not left:
        return []
    shares = share_limit(left, step, sorted(left))
    return [
        PlannedRange(
            tp=head.tp,
            range=OffsetRange(start=head.origin - shares[head.tp], until=head.origin),
            leader_epoch=head.leader_epoch,
        )
        for head, _ in sorted(back, key=lambda one: one[0].tp)
        if shares.get(head.tp, 0) > 0
    ]
