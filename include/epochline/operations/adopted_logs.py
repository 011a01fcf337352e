"""The logs of a topic or a cluster that is adopted: which offsets of theirs were read, and where each goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from epochline.operations.action import Parameters
from epochline.protocol.data_loss import CutOff
from epochline.protocol.offsets import Head, TopicPartition, belongs_to
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


def same_log_until(parameters: AdoptTopicParameters, seen: Logs, tp: TopicPartition) -> int | None:
    """Up to where the adopted log is the one that was read; None if it was not cut off."""
    if parameters.cluster:
        if parameters.at == "head":
            return None
        return 0 if seen.moved else _shown_by_group(seen, tp)
    return (seen.ends_below_head[tp] or 0) if tp in seen.ends_below_head else None


def adopted_heads(parameters: AdoptTopicParameters, seen: Logs, heads: Sequence[Head]) -> list[Head]:
    """Heads in the new log. In a truncated log, offsets before the cut stay committed."""
    origins = {head.tp: head.origin for head in heads} if parameters.at in ("truncation", "head") else {}
    adopted = []
    for view in sorted(seen.partitions, key=lambda view: view.tp):
        if is_adopted(parameters, seen, view.tp.topic):
            begins = _begins_at(parameters, view, seen, heads)
            origin = min(begins, origins.get(view.tp, begins))
            adopted.append(Head(tp=view.tp, origin=origin, next_offset=begins, leader_epoch=view.leader_epoch))
    return adopted


def carried_heads(parameters: AdoptTopicParameters, seen: Logs, heads: Sequence[Head]) -> list[Head]:
    """Heads of the other topics, which stay where they are.

    So do those of topics that nobody declares at the moment, unless they are of another cluster: they may be declared
    again. If Kafka went back in time, such a topic went back to where the group stands.
    """
    carried = [head for head in heads if not is_adopted(parameters, seen, head.tp.topic)]
    read = {partition.tp.topic for partition in seen.partitions}
    for head in heads:
        moved = any(belongs_to(name, head.tp.topic) for name in seen.moved)
        if head not in carried and head.tp.topic not in read and not moved:
            stood = seen.group.get((head.tp.topic, head.tp.partition), head.next_offset)
            same = head.next_offset if parameters.at == "head" else min(stood, head.next_offset)
            carried.append(replace(head, next_offset=max(head.origin, same)))
    return carried


def is_made_again(seen: Logs, heads: Sequence[Head], topic: str) -> bool:
    """Whether a topic has another id than its heads: it was deleted. A Kafka that went back in time keeps the ids."""
    there = {partition.tp for partition in seen.partitions}
    return all(head.tp not in there for head in heads if head.tp.topic == topic)


def is_adopted(parameters: AdoptTopicParameters, seen: Logs, topic: str) -> bool:
    """Whether a topic is among those that are adopted."""
    if parameters.cluster:
        return any(belongs_to(name, topic) for name in {*seen.moved, *seen.back})
    return topic == parameters.topic


def read_again(heads: Sequence[Head], adopted: Sequence[Head]) -> list[str]:
    """Notes on offsets that are read a second time: a truncated log may still hold committed records."""
    begins = {head.tp: head.next_offset for head in adopted}
    return [
        f"{head.tp}: offsets from {begins[head.tp]} on were committed before, up to {head.next_offset}; what the log"
        " holds of them is read a second time (say --at truncation to begin where it was cut off)"
        for head in heads
        if head.tp in begins and begins[head.tp] < head.next_offset
    ]


def cut_off_of_topic(parameters: AdoptTopicParameters, seen: Logs) -> list[CutOff]:
    """The topic's offsets that a sink shows and Kafka has truncated."""
    return [cut for cut in seen.cut_off if cut.tp.topic == parameters.topic]
