"""What Kafka says of topics: which ones a source reads, their offsets, their retention, and which are compacted.

Each function takes ``call``, which calls a method of the admin client by its name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, UnsupportedCodecError
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch

from epochline.declare.source import KafkaSource, OneSource
from epochline.errors import SourceError, TopicMissingError
from epochline.protocol.balances import LogGaps
from epochline.protocol.offsets import OffsetRange, TopicPartition, joined, left_out
from epochline.protocol.planning import HeldLog, OpenTransaction, Retention

_UNKNOWN_TOPIC = 3


def matching(source: OneSource, call: Callable[..., Any], cluster_id: str) -> list[Mapping[str, Any]]:
    """Descriptions of the topics that the source names, or whose whole name matches its pattern."""
    if source.pattern is not None:
        existing = call("describe_topics")
        return [topic for topic in existing if not topic["is_internal"] and source.reads(topic["name"])]
    topics: list[Mapping[str, Any]] = call("describe_topics", list(source.topics))
    missing = sorted(topic["name"] for topic in topics if topic["error_code"] == _UNKNOWN_TOPIC)
    if missing:
        raise TopicMissingError(
            f"Kafka has no topic {', '.join(missing)}. Nothing was planned. Create it, or correct the declaration.",
            missing,
            cluster_id,
        )
    return topics


def readable(sources: Sequence[KafkaSource], call: Callable[..., Any]) -> dict[KafkaPartition, TopicPartition]:
    """Partitions that one of the sources matches and that have a leader. Topics that do not exist are left out."""
    named = sorted({topic for source in sources for topic in source.topics})
    arguments = () if any(source.pattern is not None for source in sources) else (named,)
    described = call("describe_topics", *arguments) if sources else []
    return {
        KafkaPartition(name, partition["partition_index"]): TopicPartition(
            topic=name, partition=partition["partition_index"], topic_id=str(topic["topic_id"])
        )
        for topic in described
        for name in [topic["name"]]
        if not topic["error_code"]
        and any(source.reads(name) and not (source.pattern and topic["is_internal"]) for source in sources)
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0 and not partition["error_code"]
    }


def offsets(
    keys: Iterable[KafkaPartition],
    where: OffsetSpec | int,
    call: Callable[..., Any],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[KafkaPartition, int]:
    """The offset of each partition at one end of its log, or at a time in milliseconds, in the given order."""
    specs = dict.fromkeys(keys, where)
    answers = call("list_partition_offsets", specs, isolation) if specs else {}
    return {key: answers[key].offset for key in specs}


def held_logs(topics: Sequence[str], call: Callable[..., Any]) -> dict[tuple[str, int], HeldLog]:
    """The logs of those topics that exist, up to the last stable offset."""
    existing = {topic["name"]: topic for topic in call("describe_topics", sorted(topics)) if not topic["error_code"]}
    keys = [
        KafkaPartition(name, partition["partition_index"])
        for name, topic in existing.items()
        for partition in topic["partitions"]
    ]
    starts, ends = (offsets(keys, where, call) for where in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
    compact = compacted(set(existing), call) if existing else set()
    return {
        (key.topic, key.partition): HeldLog(
            identity=str(existing[key.topic]["topic_id"]), start=starts[key], end=ends[key],
            compacted=key.topic in compact,
        )
        for key in keys
    }  # fmt: skip


def retention(topics: Sequence[str], call: Callable[..., Any]) -> dict[str, Retention]:
    """How long Kafka keeps the records of each topic; nothing if it does not tell this login."""
    names = ["cleanup.policy", "retention.ms", "retention.bytes"]
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    configs = call("describe_configs", resources, config_filter="all")["topic"] if resources else {}
    return {
        topic: Retention(
            cleanup_policy=config["cleanup.policy"]["value"], milliseconds=int(config["retention.ms"]["value"]),
            bytes=int(config["retention.bytes"]["value"]),
        )
        for topic, config in configs.items()
        if config  # kafka-python leaves it empty if Kafka refuses.
    }  # fmt: skip


def group_retention(call: Callable[..., Any]) -> timedelta | None:
    """How long the cluster keeps the offsets of groups without members; None if it does not tell this login."""
    setting, broker = "offsets.retention.minutes", call("cluster")[1][0]
    try:
        resources = [ConfigResource(ConfigResourceType.BROKER, str(broker), [setting])]
        config = call("describe_configs", resources, config_filter="all")["broker"][str(broker)]
        return timedelta(minutes=int(config[setting]["value"]))
    except (KafkaError, KeyError, TypeError):  # kafka-python leaves it empty if Kafka refuses.
        return None


def compacted(topics: set[str], call: Callable[..., Any]) -> set[str]:
    """Topics of which Kafka may delete any record that has a successor under its key.

    Raises `SourceError` if Kafka does not tell this login.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, ["cleanup.policy"]) for topic in sorted(topics)]
    configs = call("describe_configs", resources, config_filter="all")["topic"]
    untold = sorted(topic for topic, config in configs.items() if not config)
    if untold:
        raise SourceError(
            f"Kafka does not tell whether topic {', '.join(untold)} is compacted. Nothing was planned. Grant this login"
            " DescribeConfigs on it."
        )
    return {topic for topic, config in configs.items() if "compact" in config["cleanup.policy"]["value"]}


def open_transactions(
    partitions: Sequence[KafkaPartition], call: Callable[..., Any]
) -> dict[KafkaPartition, tuple[OpenTransaction, ...]]:
    """The open transactions that hold back the last stable offset of the partitions (KIP-664), oldest first.

    Returns an empty mapping if the broker is too old, or if the user lacks the right: the transactions only help the
    operator, and no plan fails without them.
    """
    if not partitions:
        return {}
    try:
        writing = _writing(partitions, call)
        transactions = _by_producer((producer.producer_id for active in writing.values() for producer in active), call)
        found = {
            key: [_transaction(producer, transactions.get(producer.producer_id), key) for producer in active]
            for key, active in writing.items()
        }
        # One that ended after its producer was asked is known to no coordinator either.
        still = _writing([key for key, those in found.items() if any(one.hangs for one in those)], call)
    except KafkaError:
        return {}
    begun = {key: {producer.current_transaction_start_offset for producer in active} for key, active in still.items()}
    return {
        key: tuple(
            sorted(
                (one for one in those if not one.hangs or one.start_offset in begun[key]),
                key=lambda transaction: transaction.start_offset,
            )
        )
        for key, those in found.items()
    }


def _writing(partitions: Sequence[KafkaPartition], call: Callable[..., Any]) -> dict[KafkaPartition, list[Any]]:
    """The producers with an open transaction in each partition."""
    return {
        key: [producer for producer in state.active_producers if producer.current_transaction_start_offset >= 0]
        for key, state in (call("describe_producers", partitions) if partitions else {}).items()
    }


def _by_producer(producer_ids: Iterable[int], call: Callable[..., Any]) -> Mapping[int, tuple[str, Any]]:
    """Transactional id and description per producer id, as far as a coordinator knows the producer."""
    wanted = sorted(set(producer_ids))
    if not wanted:
        return {}
    try:
        listed = call("list_transactions", producer_id_filters=wanted)
        names = [transaction.transactional_id for transactions in listed.values() for transaction in transactions]
        described = call("describe_transactions", names) if names else {}
    except KafkaError:
        return {}
    return {transaction.producer_id: (name, transaction) for name, transaction in described.items()}


def _transaction(producer: Any, transaction: tuple[str, Any] | None, key: KafkaPartition) -> OpenTransaction:
    name, described = transaction or (None, None)
    # A record that came after its transaction's end opened the transaction again, unknown to the coordinator.
    if described is not None and key not in described.topic_partitions:
        described = None
    return OpenTransaction(
        start_offset=producer.current_transaction_start_offset,
        producer_id=producer.producer_id,
        last_write_at=_moment(producer.last_timestamp),
        transactional_id=name,
        begun_at=_moment(described.transaction_start_time_ms) if described else None,
        timeout=timedelta(milliseconds=described.transaction_timeout_ms) if described else None,
    )


def _moment(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds >= 0 else None


_EMPTY_ANSWERS = 3
"""After so many empty answers in a row the log has no batch in the rest of a range."""


def log_gaps(key: KafkaPartition, wanted: OffsetRange, call: Callable[..., Any]) -> LogGaps:
    """Read the batches of a range and sort its offsets: records, offsets without a visible record, and holes.

    The range ends at the last stable offset or before it, so that every transaction in it has ended. Raises
    `SourceError` if a batch cannot be decompressed.
    """
    held = [(part, batch.is_visible) for part, batch in _parts(key, wanted, call)]
    invisible = sum(part.until - part.start for part, is_visible in held if not is_visible)
    return LogGaps(invisible=invisible, holes=tuple(left_out(wanted, [part for part, _ in held])))


def transactions_of(
    key: KafkaPartition, wanted: OffsetRange, call: Callable[..., Any]
) -> Iterator[tuple[OffsetRange, int]]:
    """The offsets of a range that committed transactions wrote, in order, each with the id of its producer.

    Raises `SourceError` if a batch cannot be decompressed.
    """
    for part, batch in _parts(key, wanted, call):
        if batch.is_visible and batch.transactional_by is not None:
            yield part, batch.transactional_by


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogBatch:
    """The offsets that a batch holds, the offset after it, and whether a consumer gets its records."""

    offsets: Sequence[OffsetRange]
    until: int
    is_visible: bool
    transactional_by: int | None = None
    """The id of the producer that wrote it in a transaction."""


def _parts(
    key: KafkaPartition, wanted: OffsetRange, call: Callable[..., Any]
) -> Iterator[tuple[OffsetRange, _LogBatch]]:
    """The offsets of a range that are in batches, each with its batch."""
    position, empty = wanted.start, 0
    while position < wanted.until and empty < _EMPTY_ANSWERS:
        records, aborted = call("fetch_batches", key, position)
        before = position
        for batch in _batches(records, aborted):
            for part in batch.offsets:
                start, end = max(part.start, wanted.start), min(part.until, wanted.until)
                # A batch may begin before the position that was asked for, and was counted then.
                if before <= start < end:
                    yield OffsetRange(start=start, until=end), batch
            position = max(position, batch.until)
        empty = 0 if position > before else empty + 1


def _batches(records: bytes, aborted: Iterable[tuple[int, int]]) -> Iterator[_LogBatch]:
    """Some batches of a log; ``aborted`` has producer and first offset of each aborted transaction in them."""
    waiting = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    for batch in MemoryRecords(records):
        if not isinstance(batch, DefaultRecordBatch):
            offsets = joined(OffsetRange(start=record.offset, until=record.offset + 1) for record in batch)
            yield _LogBatch(offsets=offsets, until=offsets[-1].until, is_visible=True)
            continue
        while waiting and waiting[0][1] <= batch.last_offset:
            aborting.add(waiting.pop(0)[0])
        is_aborted = batch.is_transactional and batch.producer_id in aborting
        offsets = _offsets(batch)
        if batch.is_control_batch and next(batch).abort:
            aborting.discard(batch.producer_id)
        yield _LogBatch(
            offsets=offsets, until=batch.last_offset + 1, is_visible=not batch.is_control_batch and not is_aborted,
            transactional_by=batch.producer_id if batch.is_transactional else None,
        )  # fmt: skip


def _offsets(batch: DefaultRecordBatch) -> list[OffsetRange]:
    """The offsets that a batch holds: all of its span, unless compaction took some of its records."""
    if batch.records_count == batch.last_offset - batch.base_offset + 1:
        return [OffsetRange(start=batch.base_offset, until=batch.last_offset + 1)]
    try:
        return joined(OffsetRange(start=record.offset, until=record.offset + 1) for record in batch)
    except UnsupportedCodecError as error:
        raise SourceError(
            f"offsets [{batch.base_offset}, {batch.last_offset + 1}) cannot be decompressed: {error}"
        ) from error
