"""Checks that a log is still the one that the heads were read from (INV-9). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from epochline.errors import DataLossError
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import Head, PlannedRange, TopicPartition, places
from epochline.protocol.planning import PartitionView, SourceView
from epochline.protocol.quantities import counted, number

_APART = 2
"""Most partitions of which a message says each one's offsets. More of them are named as ranges, with one number."""


def check_same_log(pipeline: str, heads: Sequence[Head], partitions: Sequence[PartitionView]) -> None:
    """Raise `DataLossError` if topics or partitions are others, or a log begins behind or ends before a head."""
    views = {(view.tp.topic, view.tp.partition): view for view in partitions}
    seen = [(head, views.get((head.tp.topic, head.tp.partition))) for head in heads]
    _refuse_gone(pipeline, [head for head, view in seen if view is None], partitions)
    there = [(head, view) for head, view in seen if view is not None]
    again = [(head, view) for head, view in there if view.tp.topic_id != head.tp.topic_id]
    _refuse_made_again(pipeline, again, partitions)
    passed = {head.tp: (head.next_offset, view.log_start) for head, view in there if head.next_offset < view.log_start}
    total = counted(sum(until - start for start, until in passed.values()), "offset")
    gone = [
        f"retention passed the head of {tp}: offsets [{start}, {until}), {number(until - start)} of them, are gone"
        " before they were read"
        for tp, (start, until) in passed.items()
    ]
    _refuse(
        pipeline,
        gone,
        f"retention passed the heads of {places(passed)}: {total} are gone before they were read",
        f"{f' ({total} in all)' if len(gone) == _APART else ''}. Nothing was planned and no offset was reset. The"
        " command records the loss and continues after it.",
        f"declare-loss {pipeline} --reason …",
    )
    ends = {head.tp: (head.next_offset, view.high_watermark) for head, view in there}
    _refuse_truncated(
        pipeline,
        {tp: (f"its log ends at {end}", offset - end) for tp, (offset, end) in ends.items() if offset > end},
        {head.tp: head.next_offset for head in heads},
    )
    shrunk = lost_unread(heads, partitions)
    topic = next((tp.topic for tp in shrunk), "")
    _refuse(
        pipeline,
        list(shrunk.values()),
        f"the logs of {places(shrunk)} end before where the plans of their last epochs saw them end: offsets were"
        " truncated before they were read",
        ". A broker lost records, or Kafka went back in time, as from a backup, and other records may have the offsets"
        f" that were read: `epochline audit {pipeline}` compares them. Nothing was planned. The command goes on at the"
        " heads.",
        f"adopt-topic {pipeline} {topic} --at truncation --reason …",
    )


def lost_unread(heads: Sequence[Head], partitions: Sequence[PartitionView]) -> dict[TopicPartition, str]:
    """Kafka's logs that end before where the last plan saw them end, although not before the head; each in words."""
    views = {view.tp: view for view in partitions if view.leader_epoch is not None}
    return {
        head.tp: (
            f"the log of {head.tp} ended at {head.log_end} when epoch {head.epoch_id} was planned, and ends at"
            f" {views[head.tp].high_watermark} now: offsets from there on were truncated before they were read"
        )
        for head in heads
        if head.log_end is not None
        and head.tp in views
        and head.next_offset <= views[head.tp].high_watermark < head.log_end
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A sink shows a partition up to the offset ``shown``; its log has since been truncated to ``end``."""

    shown_by: str
    tp: TopicPartition
    shown: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.shown_by} shows {self.tp} up to offset {self.shown}, as the lost ledger committed it, but its log"
            f" has since been truncated to {self.end}"
        )


def check_shown_is_there(pipeline: str, heads: Sequence[Head], cut_off: Sequence[CutOff]) -> None:
    """Raise `DataLossError` if records that a sink shows and the tables lack were truncated meanwhile."""
    next_offsets = {head.tp: head.next_offset for head in heads}
    lacking = [cut for cut in cut_off if cut.shown > next_offsets.get(cut.tp, cut.shown)]
    topic = lacking[0].tp.topic if lacking else ""
    _refuse(
        pipeline,
        [str(cut) for cut in lacking],
        f"{', '.join(sorted({cut.shown_by for cut in lacking}))} shows {places(cut.tp for cut in lacking)}, as the lost"
        " ledger committed them, beyond the offsets to which their logs have since been truncated",
        ". Nothing was planned. The tables cannot have those records. The command reads the records that replaced them,"
        " into all sinks.",
        f"adopt-topic {pipeline} {topic} --at truncation --reason …",
    )


def check_not_truncated(pipeline: str, heads: Sequence[Head], ends: Mapping[TopicPartition, int | None]) -> None:
    """Raise `DataLossError` for a log that was truncated below a head and has grown past it since.

    For heads that were read under an earlier leader, ``ends`` has the end of that leader's epoch
    (`epochline.ports.OffsetSource.leader_epoch_ends`).
    """
    truncated: dict[TopicPartition, tuple[str, int | None]] = {}
    for head in heads:
        if head.tp not in ends:
            continue
        end = ends[head.tp]
        if end is None:
            truncated[head.tp] = (f"its log no longer has leader epoch {head.leader_epoch} or a later one", None)
        elif end < head.next_offset:
            how = f"the records of leader epoch {head.leader_epoch} now end at {end} and other records may follow"
            truncated[head.tp] = (how, head.next_offset - end)
    _refuse_truncated(pipeline, truncated, {head.tp: head.next_offset for head in heads})


def check_read(
    epoch: Epoch,
    ranges: Sequence[PlannedRange],
    partitions: Sequence[PartitionView],
    ends: Mapping[TopicPartition, int | None],
) -> None:
    """Raise `DataLossError` for an epoch that may have read another log than its ranges were planned in.

    Records are read by a topic's name, which does not identify the log. ``partitions`` are Kafka's after the read,
    ``ends`` as in `check_not_truncated`.
    """
    views = {(view.tp.topic, view.tp.partition): view.tp.topic_id for view in partitions}
    gone, again, truncated = [], [], {}
    for planned in ranges:
        now = views.get((planned.tp.topic, planned.tp.partition))
        if now is None:
            gone.append(planned.tp)
        elif now != planned.tp.topic_id:
            again.append(
                f"topic {planned.tp.topic} was deleted and made again (its id was {planned.tp.topic_id}, is now {now})"
            )
        elif planned.tp in ends:
            end = ends[planned.tp]
            if end is None or end < planned.range.until:
                how = "are gone" if end is None else f"end at offset {end}"
                truncated[planned.tp] = (
                    f"{planned} was truncated: the records of leader epoch {planned.leader_epoch} {how}"
                )
    changed = [f"{places(gone)} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    changed += dict.fromkeys(again)
    changed += [_apart(list(truncated.values()), f"{places(truncated)} were truncated")] if truncated else []
    if changed:
        raise DataLossError(
            f"{epoch}: the log changed after the epoch was planned: {'; '.join(changed)}. The staged"
            " records may be of another log, so nothing was sealed and no offset moves. The run's end aborts the epoch."
            " The next plan says what was lost.",
            f"plan {epoch.pipeline}",
        )


LeaderEpochEnds = Mapping[tuple[TopicPartition, int | None], int | None]
"""By partition and former leader epoch, up to where the log goes back to that epoch; None if it knows none so late."""


def cannot_be_read_again(
    ranges: Iterable[PlannedRange],
    seen: SourceView,
    ends: LeaderEpochEnds,
    counted: Mapping[PlannedRange, int] = MappingProxyType({}),
) -> str | None:
    """Why one of these ranges may not hold the records any more that were read from it; None if all do."""
    views = {view.tp: view for view in seen.partitions}
    for planned in ranges:
        view = views.get(planned.tp)
        if view is None:
            return f"the source no longer has {planned.tp} as it was then (topic id {planned.tp.topic_id})"
        if not view.holds(planned.range):
            return f"the source no longer holds {planned}: its log is [{view.log_start}, {view.known_end}) now"
        end = ends.get((planned.tp, planned.leader_epoch), planned.range.until)
        if end is None or end < planned.range.until:
            where = "" if end is None else f" at offset {end}"
            return (
                f"the source no longer holds {planned} as it was read: its log was truncated{where}, and other records"
                " may have taken the offsets"
            )
        now = counted.get(planned, planned.records)
        if planned.records is not None and now != planned.records:
            return f"the source counts {now} records in {planned}, of which {planned.records} were read"
        if planned.tp.topic in seen.compacted:
            return (
                f"{planned.tp.topic} is compacted (a pipeline under another name can read it into tables of its own):"
                f" Kafka deletes a record once a later one has its key, so that {planned} may give fewer records now,"
                " or by the time that it is read"
            )
    return None


def committed_offsets(heads: Iterable[Head]) -> int:
    """Count the offsets between origins and heads."""
    return sum(head.next_offset - head.origin for head in heads)


def held(partitions: Iterable[PartitionView]) -> str:
    """Describe how many offsets Kafka holds in these partitions."""
    views = list(partitions)
    offsets = sum(view.high_watermark - view.log_start for view in views)
    return f"{counted(offsets, 'offset')} in {counted(len(views), 'partition')}"


def _refuse_gone(pipeline: str, heads: Sequence[Head], partitions: Sequence[PartitionView]) -> None:
    if not heads:
        return
    losses = [f"{head.tp}, committed up to offset {head.next_offset}" for head in heads]
    gone = _apart(
        [f"the partition{'' if len(losses) == 1 else 's'} {losses[0]}", *losses[1:]], places(head.tp for head in heads)
    )
    shrunk = sorted({head.tp.topic for head in heads} & {view.tp.topic for view in partitions})
    raise DataLossError(
        f"{pipeline}: the source no longer has {gone}"
        f" ({counted(committed_offsets(heads), 'offset')} were committed). Records produced"
        " after that and not read are lost; their number is unknown. Nothing was planned."
        + (
            " A topic does not lose partitions, so it was made again with fewer. The new one holds"
            f" {held(view for view in partitions if view.tp.topic == shrunk[0])}."
            if shrunk
            else " Remove the topic from the declaration if it was deleted on purpose. A topic made again under its"
            " name is another topic, with which the command continues."
        ),
        f"adopt-topic {pipeline} {(shrunk or [heads[0].tp.topic])[0]} --reason …",
    )


def _refuse_made_again(
    pipeline: str, made_again: Sequence[tuple[Head, PartitionView]], partitions: Sequence[PartitionView]
) -> None:
    if not made_again:
        return
    head, view = made_again[0]
    topic = head.tp.topic
    void = [old for old, _ in made_again if old.tp.topic == topic]
    committed = [f"offset {old.next_offset} of partition {old.tp.partition}" for old in void]
    raise DataLossError(
        f"{pipeline}: topic {topic} was deleted and made again (its id was {head.tp.topic_id}, is now"
        f" {view.tp.topic_id}); "
        f"{_apart(committed, f'every committed offset of {places(old.tp for old in void)}')} now means another record."
        f" {counted(committed_offsets(void), 'offset')} of the old topic were committed; its unread records"
        " are lost, and their number is unknown. Nothing was planned."
        f" The new topic holds {held(view for view in partitions if view.tp.topic == topic)}. The command"
        " continues with it.",
        f"adopt-topic {pipeline} {topic} --reason …",
    )


def _refuse_truncated(
    pipeline: str, cuts: Mapping[TopicPartition, tuple[str, int | None]], offsets: Mapping[TopicPartition, int]
) -> None:
    """Refuse truncated partitions, each given with how its log ends and the number of lost offsets."""
    truncated = [
        f"{tp} is committed up to offset {offsets[tp]}, but {how}:"
        f" {'offsets' if lost is None else counted(lost, 'offset')} that were read have been truncated"
        for tp, (how, lost) in cuts.items()
    ]
    _refuse(
        pipeline,
        truncated,
        f"{places(cuts)} are committed beyond the ends of their logs: offsets that were read have been truncated",
        ". Nothing was planned. Find out which broker lost its log, and compare the target. The command continues with"
        " the log as it is.",
        f"adopt-topic {pipeline} {next((tp.topic for tp in cuts), '')} --reason …",
    )


def _refuse(pipeline: str, losses: Sequence[str], together: str, then: str, command: str) -> None:
    """Refuse to plan if something is said of a partition; ``then`` says what follows from it."""
    if losses:
        raise DataLossError(f"{pipeline}: {_apart(losses, together)}{then}", command)


def _apart(losses: Sequence[str], together: str) -> str:
    """What is said of each partition, or of all together where a line could not be read."""
    return "; ".join(losses) if len(losses) <= _APART else together
