"""Adopt a topic that was made again or truncated: a new generation begins, and earlier commits stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from epochline.coordinator.observe import ConsumerGroup, cut_off, former_leaders_ends
from epochline.coordinator.takeover import shown_ahead
from epochline.operations.action import (
    ActionPreview,
    Afterwards,
    Case,
    DirectAction,
    Parameters,
    Request,
    Subject,
    mirrored,
    refused,
)
from epochline.protocol.data_loss import CutOff, lost_unread
from epochline.protocol.offsets import Head, TopicPartition, belongs_to, cut_reached, moved_clusters, with_clusters
from epochline.protocol.planning import PartitionView


class AdoptTopicParameters(Parameters):
    """Which topic, and where its new log begins."""

    topic: str | None = Field(
        None, description="The topic that was made again or truncated.", json_schema_extra={"argument": True}
    )
    cluster: bool = Field(
        False,
        description="Adopt every topic, because a connection leads to another cluster, or Kafka was restored from a"
        " backup.",
    )
    at: Literal["earliest", "latest", "truncation", "head"] = Field(
        "earliest",
        description="Where each partition begins: at its log start (earliest), at its end (latest), or where its log"
        " was cut off (truncation). truncation reads every record that replaced a lost one, and reads no record twice."
        " After a restore of Kafka, truncation begins at the consumer group's offsets; head continues at the heads, if"
        " the log is the same.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The logs that Kafka has now."""

    cluster_id: str | None
    """The clusters that the pipeline's offsets belong to afterwards."""
    moved: Mapping[str, tuple[str, str]]
    """Sources whose connection leads to another cluster than before, each with its former and its new id."""
    partitions: Sequence[PartitionView]
    ends_below_head: Mapping[TopicPartition, int | None]
    """Per partition whose log no longer reaches the head: up to which offset it is still the log that was read.

    None if the log is another one.
    """
    back: frozenset[str]
    """Sources whose Kafka went back in time, by the evidence of the consumer group, or whose group is gone."""
    older: frozenset[tuple[str, int]]
    """Topics and partitions of which the group shows an older mirror."""
    group: Mapping[tuple[str, int], int]
    """By topic and partition, the offset of the consumer group, which a commit wrote."""
    lost_unread: Mapping[TopicPartition, str]
    """Partitions that lost records behind the head, each with what happened."""
    cut_off: Sequence[CutOff]
    """After `accept-ledger`: offsets that a sink shows, that the restored tables lack, and that Kafka has truncated."""


class AdoptTopic(DirectAction[AdoptTopicParameters, Logs]):
    """Continue with TOPIC although it was deleted and made again, or its log was truncated. A new generation of
    PIPELINE begins: in TOPIC at the place that --at names, in every other topic at its head. Committed rows stay.
    """

    name = "adopt-topic"
    parameters = AdoptTopicParameters

    def look(self, subject: Subject, parameters: AdoptTopicParameters) -> Logs:
        declared, source = subject.declaration()
        with subject.ledger.transaction() as tx:
            row = tx.epochs.pipeline(subject.name)
            heads = tx.chain.heads(subject.name, row.generation) if row else ()
            shown = shown_ahead(tx.receipts.accepted(subject.name), heads)
            last = tx.receipts.last_mirror(declared.name)
        group = ConsumerGroup.observe(source, declared, last)
        back = [*(topic for topic, _ in group.older), *group.missing]
        view = source.look(declared.source)
        ends = former_leaders_ends(source, heads, view)
        offsets = {head.tp: head.next_offset for head in heads}
        # A truncated log that has not grown since ends before its head.
        cut = {
            partition.tp: partition.high_watermark
            for partition in view.partitions
            if partition.high_watermark < offsets.get(partition.tp, 0)
        }
        return Logs(
            cluster_id=with_clusters(view.cluster_id, row.cluster_id if row else None),
            moved=moved_clusters(row.cluster_id if row else None, view.cluster_id),
            partitions=view.partitions,
            ends_below_head=cut | {tp: end for tp, end in ends.items() if end is None or end < offsets[tp]},
            back=frozenset(name for name in declared.inputs if any(belongs_to(name, topic) for topic in back)),
            older=frozenset(group.older),
            group={key: position.offset for key, position in group.offsets.items() if position.epoch_id is not None},
            lost_unread=lost_unread(heads, view.partitions),
            cut_off=cut_off(source, shown, view),
        )

    def describe(self, case: Case[AdoptTopicParameters, Logs]) -> ActionPreview:
        row, heads, parameters, seen = case.row, case.heads, case.parameters, case.seen
        obstacle = _obstacle(case)
        if row is None or obstacle is not None:
            return refused(obstacle or f"{case.pipeline} is not known.")
        adopted = _adopted(parameters, seen, heads)
        carried = _carried(parameters, seen, heads)
        lines = [
            f"generation {row.generation + 1} of {case.pipeline} begins; rows of the earlier ones stay as they are"
        ]
        lines += [
            f"{head.tp}: begins at {head.next_offset} ({parameters.at}) of topic id {head.tp.topic_id}"
            for head in adopted
        ]
        lines += [f"{head.tp}: goes on at {head.next_offset}" for head in carried]
        lines += _read_again(heads, adopted)
        lines += list(seen.lost_unread.values())  # Those of the other topics, too: the next plan starts afresh.
        lines += [
            f"{sink.table}: its key is the place of a record, so a new record at the place of an older row is refused;"
            " declare another table first"
            for sink in case.declared.targets
            if sink.key_is_place
        ]
        lines += [
            f"{cut}; {cut.shown_by} gets every record from offset {cut.end} on"
            for cut in _cut_off_of_topic(parameters, seen)
        ]
        if parameters.cluster:
            lines += [
                f"{f'offsets of {name}' if name else 'its offsets'} belong to Kafka cluster {now} from now on, not to"
                f" {before}"
                for name, (before, now) in sorted(seen.moved.items())
            ]
        return ActionPreview(
            lines=lines,
            before=_state(row.generation, row.cluster_id, [(head.tp, head.next_offset) for head in heads]),
            after=_state(
                row.generation + 1, seen.cluster_id, [(head.tp, head.next_offset) for head in (*adopted, *carried)]
            ),
        )

    def change(self, case: Case[AdoptTopicParameters, Logs], request: Request) -> Afterwards:
        tx, subject, parameters, seen = case.tx, case.subject, case.parameters, case.seen
        heads = case.heads
        begun = tx.operators.begin_generation(subject.name, seen.cluster_id)
        for head in _adopted(parameters, seen, heads):
            cut = _same_log_until(parameters, seen, head.tp)
            tx.chain.carry_over(subject.name, begun.generation, head, f"adopted at {parameters.at}", cut)
        for head in _carried(parameters, seen, heads):
            cut = None if head in heads else head.next_offset
            tx.chain.carry_over(subject.name, begun.generation, head, "carried over", cut)
        # Positions of deleted keys belong to the old log, and offsets of the new one must not be compared with them.
        tx.targets.restart_order(case.declared)
        # A sink is not sent the offsets that it showed before `accept-ledger`. Behind the cut other records came in
        # their place, so end these offsets at the cut.
        for receipt in tx.receipts.accepted(subject.name):
            cuts = {cut.tp: cut.end for cut in _cut_off_of_topic(parameters, seen) if cut.shown_by == receipt.shown_by}
            if cuts and receipt.shown.reached is not None:
                left = cut_reached(receipt.shown.reached, cuts)
                tx.receipts.accept(subject.name, receipt.shown_by, replace(receipt.shown, reached=left))

        if parameters.topic is not None and _is_made_again(seen, heads, parameters.topic):
            # Kafka deletes the offsets of a group with their topic, some time after it.
            tx.receipts.forget_mirrors(subject.name, parameters.topic)
        paused = tx.operators.standing(subject.name).paused
        if seen.back and parameters.cluster:
            tx.receipts.forget_mirrors(subject.name)
            if paused is not None and paused.by == "epochline":
                tx.operators.resume(subject.name)

        # One topic decides nothing for the others: what the group shows of them stays evidence.
        line = f"{subject.name} goes on in generation {begun.generation}"
        return mirrored(case, line, known=parameters.cluster and bool(seen.back))


def _obstacle(case: Case[AdoptTopicParameters, Logs]) -> str | None:
    parameters, seen, unfinished = case.parameters, case.seen, case.unfinished
    if unfinished is not None:
        return f"{unfinished} is {unfinished.state}, and its ranges are of the old log; finish or abort it first."
    if (parameters.topic is None) is not parameters.cluster:
        return "name the topic, or say --cluster for all of them, and not both."
    if parameters.cluster:
        return _obstacle_of_cluster(case.pipeline, parameters, seen)
    if parameters.at == "head":
        return "--at head goes with --cluster: it is for a Kafka that went back in time to the same log."
    if seen.older:
        return (
            "the consumer group shows less than was written to it: Kafka went back in time, so that every topic may be"
            " another one than was read; say --cluster for all of them."
        )
    for name, (_, now) in sorted(seen.moved.items()):
        return (
            f"the connection{f' of {name}' if name else ''} leads to Kafka cluster {now}, so every topic is another"
            " one; correct the connection, or say --cluster."
        )
    if not any(partition.tp.topic == parameters.topic for partition in seen.partitions):
        return f"{case.pipeline} reads no topic {parameters.topic!r}, or the source does not have it."
    read = [head.tp for head in case.heads if head.tp.topic == parameters.topic]
    # A `tp` contains the topic's id: a partition of a topic that was made again is another one.
    made_again = [tp for tp in read if tp not in {partition.tp for partition in seen.partitions}]
    same_log = not made_again and not {*read} & {*seen.ends_below_head, *seen.lost_unread}
    if same_log and not _cut_off_of_topic(parameters, seen):
        return f"topic {parameters.topic} is the one that {case.pipeline} has read so far; there is nothing to adopt."
    waits = [view for view in seen.partitions if view.waits_for is not None and view.last_stable < view.high_watermark]
    if parameters.at == "latest" and waits:
        return f"{waits[0].tp} has no latest position yet: {waits[0].waits_for}. Try again when that has ended."
    unknown = [tp for tp, end in seen.ends_below_head.items() if end is None and tp.topic == parameters.topic]
    if parameters.at == "truncation" and (made_again or unknown):
        return (
            f"{[*made_again, *unknown][0]}: the log is another one, not a truncated one, so nobody knows where it was"
            " cut off. Say --at earliest or --at latest."
        )
    return None


def _obstacle_of_cluster(pipeline: str, parameters: AdoptTopicParameters, seen: Logs) -> str | None:
    if not seen.moved and not seen.back:
        return f"{pipeline} reads Kafka cluster {seen.cluster_id}, as before; there is no cluster to adopt."
    if parameters.at in ("truncation", "head") and seen.moved:
        return "a log of another cluster was not cut off anywhere; say --at earliest or --at latest."
    adopted = [view for view in seen.partitions if _is_adopted(parameters, seen, view.tp.topic)]
    if parameters.at == "truncation" and not any((view.tp.topic, view.tp.partition) in seen.group for view in adopted):
        return (
            "the consumer group shows nothing, so nobody knows where the logs were cut off. Say --at earliest,"
            " --at latest or --at head."
        )
    cut = next((view.tp for view in adopted if view.tp in seen.ends_below_head), None)
    if parameters.at == "head" and cut is not None:
        return f"the log of {cut} was truncated below its head, so it is not the log that was read."
    return None


def _begins_at(parameters: AdoptTopicParameters, view: PartitionView, seen: Logs, heads: Sequence[Head]) -> int:
    if parameters.at == "earliest":
        return view.log_start
    if parameters.at == "latest":
        return view.last_stable
    committed = {head.tp: head.next_offset for head in heads}
    cut = seen.ends_below_head.get(view.tp)
    if parameters.cluster and parameters.at == "truncation" and view.tp in committed:
        # A restore since then moved the head back: what it undid is read again.
        same = _shown_by_group(seen, view.tp)
        origin = next(head.origin for head in heads if head.tp == view.tp)
        cut = min(max(origin, min(same, committed[view.tp])), view.last_stable)
    return max(view.log_start, committed.get(view.tp, view.log_start) if cut is None else cut)


def _shown_by_group(seen: Logs, tp: TopicPartition) -> int:
    """Up to where a log of a Kafka that went back is the one that was read: the group stood there."""
    stood = seen.group.get((tp.topic, tp.partition), 0)
    return min(stood, seen.ends_below_head.get(tp, stood) or 0)


def _same_log_until(parameters: AdoptTopicParameters, seen: Logs, tp: TopicPartition) -> int | None:
    """Up to where the adopted log is the one that was read; None if it was not cut off."""
    if parameters.cluster:
        if parameters.at == "head":
            return None
        return 0 if seen.moved else _shown_by_group(seen, tp)
    return (seen.ends_below_head[tp] or 0) if tp in seen.ends_below_head else None


def _adopted(parameters: AdoptTopicParameters, seen: Logs, heads: Sequence[Head]) -> list[Head]:
    """Heads in the new log. In a truncated log, offsets before the cut stay committed."""
    origins = {head.tp: head.origin for head in heads} if parameters.at in ("truncation", "head") else {}
    adopted = []
    for view in sorted(seen.partitions, key=lambda view: view.tp):
        if _is_adopted(parameters, seen, view.tp.topic):
            begins = _begins_at(parameters, view, seen, heads)
            origin = min(begins, origins.get(view.tp, begins))
            adopted.append(Head(tp=view.tp, origin=origin, next_offset=begins, leader_epoch=view.leader_epoch))
    return adopted


def _carried(parameters: AdoptTopicParameters, seen: Logs, heads: Sequence[Head]) -> list[Head]:
    """Heads of the other topics, which stay where they are.

    So do those of topics that nobody declares at the moment, unless they are of another cluster: they may be declared
    again. If Kafka went back in time, such a topic went back to where the group stands.
    """
    carried = [head for head in heads if not _is_adopted(parameters, seen, head.tp.topic)]
    read = {partition.tp.topic for partition in seen.partitions}
    for head in heads:
        moved = any(belongs_to(name, head.tp.topic) for name in seen.moved)
        if head not in carried and head.tp.topic not in read and not moved:
            stood = seen.group.get((head.tp.topic, head.tp.partition), head.next_offset)
            same = head.next_offset if parameters.at == "head" else min(stood, head.next_offset)
            carried.append(replace(head, next_offset=max(head.origin, same)))
    return carried


def _is_made_again(seen: Logs, heads: Sequence[Head], topic: str) -> bool:
    """Whether a topic has another id than its heads: it was deleted. A Kafka that went back in time keeps the ids."""
    there = {partition.tp for partition in seen.partitions}
    return all(head.tp not in there for head in heads if head.tp.topic == topic)


def _is_adopted(parameters: AdoptTopicParameters, seen: Logs, topic: str) -> bool:
    if parameters.cluster:
        return any(belongs_to(name, topic) for name in {*seen.moved, *seen.back})
    return topic == parameters.topic


def _read_again(heads: Sequence[Head], adopted: Sequence[Head]) -> list[str]:
    """Notes on offsets that are read a second time: a truncated log may still hold committed records."""
    begins = {head.tp: head.next_offset for head in adopted}
    return [
        f"{head.tp}: offsets from {begins[head.tp]} on were committed before, up to {head.next_offset}; what the log"
        " holds of them is read a second time (say --at truncation to begin where it was cut off)"
        for head in heads
        if head.tp in begins and begins[head.tp] < head.next_offset
    ]


def _cut_off_of_topic(parameters: AdoptTopicParameters, seen: Logs) -> list[CutOff]:
    return [cut for cut in seen.cut_off if cut.tp.topic == parameters.topic]


def _state(generation: int, cluster: str | None, positions: Sequence[tuple[Any, int]]) -> dict[str, Any]:
    return {
        "generation": generation,
        "cluster_id": cluster,
        "topic_ids": {tp.topic: tp.topic_id for tp, _ in positions},
        "heads": {str(tp): offset for tp, offset in sorted(positions)},
    }
