"""Why a pipeline stands although nobody stopped it: what the next plan would refuse, each with a word of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from epochline.cli import database
from epochline.cli.database import Row, Session
from epochline.coordinator.checks import check_same_cluster
from epochline.coordinator.evidence import refuse_unknown
from epochline.coordinator.observe import ConsumerGroup, confirmed, former_leaders_ends
from epochline.declare.pipeline import Pipeline
from epochline.errors import DataLossError, KafkaBehindError, LedgerBehindError
from epochline.ports import OffsetSource, PipelineRow
from epochline.protocol.data_loss import check_not_truncated, check_same_log
from epochline.protocol.mirror import LastMirror
from epochline.protocol.offsets import Head, TopicPartition
from epochline.protocol.planning import SourceView
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
    in_ledger = PipelineRow(generation=1, last_epoch_id=0, cluster_id=row["cluster_id"])
    try:
        check_same_cluster(pipeline, in_ledger, heads, view.cluster_id, view.partitions)
    except DataLossError as error:
        return Fault(word=FaultWord.OTHER_CLUSTER, reason=_reason(pipeline, error))
    ends: Mapping[TopicPartition, int | None] = {}
    try:
        with confirmed(source, pipeline):
            check_same_log(pipeline.name, heads, view.partitions)
            ends = former_leaders_ends(source, heads, view)
            check_not_truncated(pipeline.name, heads, ends)
    except DataLossError as error:
        words = {(head.tp.topic, head.tp.partition): _fault_at(head, view, ends) for head in heads}
        at = {place: word for place, word in words.items() if word is not None}
        return Fault(word=FaultWord.STANDS, reason=_reason(pipeline, error), at=at)
    return None


def _fault_at(head: Head, view: SourceView, ends: Mapping[TopicPartition, int | None]) -> FaultWord | None:
    """What is wrong with the partition of a head."""
    in_topic = {
        partition.tp.partition: partition for partition in view.partitions if partition.tp.topic == head.tp.topic
    }
    partition = in_topic.get(head.tp.partition)
    if partition is None:
        return FaultWord.PARTITION_GONE if in_topic else FaultWord.TOPIC_GONE
    if head.tp.topic_id != partition.tp.topic_id:
        return FaultWord.MADE_AGAIN
    if head.next_offset > partition.high_watermark:
        return FaultWord.BEYOND_END
    if head.next_offset < partition.log_start:
        return FaultWord.UNREAD_DELETED
    return FaultWord.TRUNCATED if head.tp in ends and (ends[head.tp] or 0) < head.next_offset else None


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
        return Fault(word=FaultWord.LEDGER_BEHIND, reason=_reason(pipeline, error))
    return None


def kafka_fault(pipeline: Pipeline, ledger: Session, source: OffsetSource, lost: Fault | None) -> Fault | None:
    """Whether the consumer group shows less than was written to it (INV-8), where the log's own fault is not all."""
    rows = database.ask(ledger, "last_mirror", pipeline=pipeline.name)
    if not rows or (lost is not None and lost.word == FaultWord.OTHER_CLUSTER):
        return None
    group = ConsumerGroup.observe(source, pipeline, LastMirror(**rows[0]))
    try:
        with confirmed(source, pipeline):
            group.refuse_older()
            if lost is None:
                group.refuse_gone()
    except KafkaBehindError as error:
        return Fault(word=FaultWord.KAFKA_BEHIND, reason=_reason(pipeline, error))
    return None


def _reason(pipeline: Pipeline, error: Exception) -> str:
    return str(error).removeprefix(f"{pipeline.name}: ")
