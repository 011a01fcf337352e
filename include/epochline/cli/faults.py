"""Why a pipeline stands although nobody stopped it: what the next plan would refuse, each with a word of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from epochline.cli import database
from epochline.cli.database import Session
from epochline.coordinator.checks import check_same_cluster
from epochline.coordinator.evidence import refuse_unknown
from epochline.coordinator.observe import ConsumerGroup, former_leaders_ends
from epochline.declare.pipeline import Pipeline
from epochline.errors import DataLossError, KafkaBehindError, LedgerBehindError, PipelineStandsError, TopicMissingError
from epochline.ports import OffsetSource, PipelineRow
from epochline.protocol.data_loss import check_not_truncated, check_same_log
from epochline.protocol.mirror import LastMirror
from epochline.protocol.offsets import Head
from epochline.protocol.planning import PartitionView, SourceView
from epochline.protocol.standing import StandingWord


class FaultWord(StrEnum):
    """A state that only Kafka shows, as `epochline lag` and `epochline list` name it."""

    OTHER_CLUSTER = "another cluster"
    TOPIC_GONE = "topic gone"
    PARTITION_GONE = "partition gone"
    MADE_AGAIN = "topic made again"
    TOPIC_MISSING = "topic missing"
    BEYOND_END = "head beyond end"
    TRUNCATED = "log truncated"
    UNREAD_DELETED = StandingWord.UNREAD_DELETED.value
    STANDS = "stands"
    """Another partition of the pipeline has such a fault."""
    KAFKA_BEHIND = "Kafka behind"
    LEDGER_BEHIND = "ledger behind"


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why the next plan would refuse: a word, and the partitions at fault if there are some, each with its word."""

    word: FaultWord
    reason: str
    at: Mapping[tuple[str, int], FaultWord] = field(default_factory=dict)


def log_fault(
    pipeline: Pipeline, row: Row, heads: Sequence[Head], view: SourceView, source: OffsetSource
) -> Fault | None:
    """Whether the log is another one than the heads were read from."""
    name = pipeline.name
    in_ledger = PipelineRow(generation=1, last_epoch_id=0, cluster_id=row["cluster_id"])
    try:
        check_same_cluster(pipeline, in_ledger, heads, view.cluster_id, view.partitions)
    except DataLossError as error:
        return Fault(word=FaultWord.OTHER_CLUSTER, reason=_said(name, error))
    views = {(one.tp.topic, one.tp.partition): one for one in view.partitions}
    topics = {topic for topic, _ in views}
    try:
        check_same_log(name, heads, view.partitions)
    except DataLossError as error:
        words = {(head.tp.topic, head.tp.partition): _fault_at(head, views, topics) for head in heads}
        at = {key: word for key, word in words.items() if word is not None}
        return Fault(word=FaultWord.STANDS, reason=_said(name, error), at=at)
    ends = former_leaders_ends(source, heads, view)
    try:
        check_not_truncated(name, heads, ends)
    except DataLossError as error:
        cut = [one.tp for one in heads if one.tp in ends and (ends[one.tp] or 0) < one.next_offset]
        at = {(tp.topic, tp.partition): FaultWord.TRUNCATED for tp in cut}
        return Fault(word=FaultWord.TRUNCATED, reason=_said(name, error), at=at)
    return None


def _fault_at(head: Head, views: Mapping[tuple[str, int], PartitionView], topics: set[str]) -> FaultWord | None:
    """What is wrong with the partition of a head."""
    there = views.get((head.tp.topic, head.tp.partition))
    if there is None:
        return FaultWord.PARTITION_GONE if head.tp.topic in topics else FaultWord.TOPIC_GONE
    if head.tp.topic_id != there.tp.topic_id:
        return FaultWord.MADE_AGAIN
    if head.next_offset > there.high_watermark:
        return FaultWord.BEYOND_END
    return FaultWord.UNREAD_DELETED if head.next_offset < there.log_start else None


def topic_fault(pipeline: str, error: TopicMissingError | None) -> Fault | None:
    """Whether Kafka lacks a declared topic that was never read."""
    if error is None:
        return None
    return Fault(word=FaultWord.TOPIC_MISSING, reason=going_on(str(error), f"run {pipeline}"))


def ledger_fault(pipeline: Pipeline, row: Row, ledger: Session, source: OffsetSource) -> Fault | None:
    """Whether the consumer group shows an epoch that the ledger does not know (INV-8)."""
    last = row["last_epoch_id"]
    unknown = []
    for evidence in ConsumerGroup.observe(source, pipeline, last=None).evidence:
        if evidence.shown.token is None:
            in_ledger = evidence.shown.epoch_id <= last
        else:
            (answer,) = database.ask(ledger, "knows_token", pipeline=pipeline.name, token=evidence.shown.token)
            in_ledger = answer["known"]
        if not in_ledger:
            unknown.append(evidence)
    try:
        refuse_unknown(pipeline.name, last, unknown)
    except LedgerBehindError as error:
        return Fault(word=FaultWord.LEDGER_BEHIND, reason=_said(pipeline.name, error))
    return None


def kafka_fault(pipeline: Pipeline, ledger: Session, source: OffsetSource, lost: Fault | None) -> Fault | None:
    """Whether the consumer group shows less than was written to it (INV-8), where the log's own fault is not all."""
    rows = database.ask(ledger, "last_mirror", pipeline=pipeline.name)
    if not rows or (lost is not None and lost.word == FaultWord.OTHER_CLUSTER):
        return None
    group = ConsumerGroup.observe(source, pipeline, LastMirror(**rows[0]))
    try:
        group.refuse_older()
        if lost is None:
            group.refuse_gone()
    except KafkaBehindError as error:
        return Fault(word=FaultWord.KAFKA_BEHIND, reason=_said(pipeline.name, error))
    return None


def _said(pipeline: str, error: Exception) -> str:
    return str(error).removeprefix(f"{pipeline}: ")


def going_on(said: str, command: str) -> str:
    """A sentence, and the command that goes on."""
    return str(PipelineStandsError(f"{said.rstrip('.')}.", command))
