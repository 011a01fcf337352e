"""The Kafka adapter of `epochline.ports.OffsetSource`: offsets, topic ids, leader epochs and the group mirror."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import OffsetAndMetadata
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from epochline.config.kafka import SERVERS
from epochline.declare.inputs import DeclaredSource, one_source
from epochline.declare.source import KafkaSource
from epochline.errors import RecordsGoneError, SourceError, SourceUnavailableError
from epochline.kafka import topics
from epochline.kafka.admin import EpochlineAdmin, check_versions, detect_refusals, new_admin, shorten_log
from epochline.kafka.agreement import disagreement
from epochline.kafka.tokens import kafka_python_settings
from epochline.protocol.balances import LogGaps
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.offsets import Head, OffsetRange, PlannedRange, TopicPartition
from epochline.protocol.planning import HeldLog, LogEnd, PartitionView, SourceView

log = logging.getLogger(__name__)
T = TypeVar("T")

shorten_log()

_PATIENCE_SECONDS = 15
_MIRROR = re.compile(r"^epochline (\d+):(\d+)(?: ([0-9a-f-]{36}))?(?: #(\d+))?$")
_UNIX_EPOCH = datetime.fromtimestamp(0, UTC)


class KafkaOffsets:
    """One Kafka cluster, queried through its admin protocol with isolation level ``read_committed``."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        if not settings.get(SERVERS):
            raise SourceError("the Kafka connection names no bootstrap.servers.")
        self._settings = kafka_python_settings(settings)
        self._kept: EpochlineAdmin | None = None
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[str, int | None] = {}

    @contextmanager
    def one_client(self) -> Iterator[None]:
        """Use one client for all calls in the block; otherwise each call opens and closes a client."""
        with self._opened() as admin:
            self._kept = admin
            try:
                yield
            finally:
                self._kept = None

    @contextmanager
    def _client(self) -> Iterator[Callable[..., Any]]:
        """A function that calls a method of the admin client by name and retries transient errors."""
        with ExitStack() as opened:
            admin = self._kept or opened.enter_context(self._opened())

            def call(method: str, *args: Any, **options: Any) -> Any:
                return _retrying()(getattr(admin, method), *args, **options)

            with self._explaining():
                yield call

    @contextmanager
    def _opened(self) -> Iterator[EpochlineAdmin]:
        servers = self._settings["bootstrap_servers"]
        try:
            admin = new_admin(self._settings, _PATIENCE_SECONDS * 1000)
        except (KafkaError, OSError) as error:
            raise SourceUnavailableError(f"Kafka at {servers} does not answer: {_text(error)}") from error
        try:
            with self._explaining():
                check_versions(servers, admin.api_versions())
            yield admin
        finally:
            admin.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        servers = self._settings["bootstrap_servers"]
        try:
            with detect_refusals(servers):
                yield
        except KafkaError as error:
            kind = SourceUnavailableError if getattr(error, "retriable", False) else SourceError
            raise kind(f"Kafka at {servers} refused or did not answer: {_text(error)}") from error

    def look(self, source: DeclaredSource) -> SourceView:
        source = one_source(source)
        with self._client() as call:
            cluster_id = call("cluster")[0]
            partitions = self._partitions(topics.matching(source, call, cluster_id))
            keys = [KafkaPartition(tp.topic, tp.partition) for tp in partitions]
            if not keys:
                return SourceView(cluster_id=cluster_id, partitions=())
            # In this order: what is written in between is not held back.
            ends = topics.offsets(keys, OffsetSpec.LATEST, call, IsolationLevel.READ_UNCOMMITTED)
            stable = topics.offsets(keys, OffsetSpec.LATEST, call)
            starts = topics.offsets(keys, OffsetSpec.EARLIEST, call)
            names = {tp.topic for tp in partitions}
            compact = topics.compacted(names, call)
            transactions = topics.open_transactions([key for key in keys if ends[key] > stable[key]], call)
        self._leaders = {(tp.topic, tp.partition): epoch for tp, epoch in partitions.items() if epoch is not None}
        return SourceView(
            cluster_id=cluster_id,
            partitions=tuple(
                PartitionView(
                    tp=tp,
                    log_start=starts[key],
                    last_stable=stable[key],
                    high_watermark=max(ends[key], stable[key]),
                    leader_epoch=leader_epoch,
                    open_transactions=transactions.get(key, ()),
                )
                for (tp, leader_epoch), key in zip(partitions.items(), keys, strict=True)
            ),
            invisible_allowed=frozenset(names if source.gaps_expected else compact),
            compacted=frozenset(compact),
        )

    def counted(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], int]:
        return {}

    def gaps(self, ranges: Sequence[PlannedRange]) -> Mapping[tuple[str, int], LogGaps]:
        found = {}
        with self._client() as call:
            for planned in ranges:
                key = KafkaPartition(planned.tp.topic, planned.tp.partition)
                try:
                    found[key.topic, key.partition] = topics.log_gaps(key, planned.range, call)
                except OffsetOutOfRangeError as error:
                    raise RecordsGoneError(
                        f"Kafka deleted offsets of {planned} after they were read, so nobody can say whether those"
                        " without a record were markers. Nothing was sealed. The next plan says what is lost."
                    ) from error
        return found

    def transactions(self, topic: str, partition: int, wanted: OffsetRange) -> Sequence[tuple[OffsetRange, int]]:
        """The offsets of a range that committed transactions wrote, joined by their producer, whose id follows."""
        found: list[tuple[OffsetRange, int]] = []
        with self._client() as call:
            for part, producer in topics.transactions_of(KafkaPartition(topic, partition), wanted, call):
                if found and found[-1][1] == producer:
                    part = OffsetRange(start=found.pop()[0].start, until=part.until)
                found.append((part, producer))
        return found

    def readable_ends(self, sources: Sequence[KafkaSource]) -> Mapping[TopicPartition, int]:
        with self._client() as call:
            keys = topics.readable(sources, call)
            return {keys[key]: end for key, end in topics.offsets(keys, OffsetSpec.LATEST, call).items()}

    def log_ends(self, sources: Sequence[KafkaSource]) -> Sequence[LogEnd]:
        with self._client() as call:
            keys = topics.readable(sources, call)
            kept = topics.retention(sorted({key.topic for key in keys}), call)
            starts, ends = (topics.offsets(keys, where, call) for where in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
            return [
                LogEnd(tp=tp, log_start=starts[key], last_stable=ends[key], retention=kept.get(tp.topic))
                for key, tp in keys.items()
            ]

    def held(self, names: Sequence[str]) -> Mapping[tuple[str, int], HeldLog]:
        """See `epochline.kafka.records.RecordReader.held`."""
        with self._client() as call:
            return topics.held_logs(names, call)

    @staticmethod
    def _partitions(described: Sequence[Mapping[str, Any]]) -> dict[TopicPartition, int | None]:
        partitions = {}
        for topic in described:
            for partition in topic["partitions"]:
                tp = TopicPartition(
                    topic=topic["name"], partition=partition["partition_index"], topic_id=str(topic["topic_id"])
                )
                if partition["leader_id"] < 0 or partition["error_code"]:
                    raise SourceUnavailableError(
                        f"{tp} has no leader now, so its offsets are unknown. Nothing was planned. A retry may help."
                    )
                partitions[tp] = partition["leader_epoch"]
        return dict(sorted(partitions.items()))

    def offsets_at(self, partitions: Sequence[TopicPartition], moment: datetime) -> Mapping[TopicPartition, int | None]:
        milliseconds = -(-(moment - _UNIX_EPOCH) // timedelta(milliseconds=1))
        keys = {KafkaPartition(tp.topic, tp.partition): tp for tp in partitions}
        with self._client() as call:
            offsets = topics.offsets(keys, milliseconds, call)
        return {keys[key]: offset if offset >= 0 else None for key, offset in offsets.items()}

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        keys = {KafkaPartition(tp.topic, tp.partition): tp for tp in epochs}
        with self._client() as call:
            ends = call("leader_epoch_ends", {key: epochs[tp] for key, tp in keys.items()})
        return {tp: ends[key] for key, tp in keys.items()}

    def confirm(self, group: str) -> None:
        with self._client() as call:
            told = call("told_by_each", sorted({topic for topic, _ in self._leaders}), group)
        if why := disagreement(self._leaders, self._coordinators.get(group), told):
            raise SourceUnavailableError(
                f"Kafka at {self._settings['bootstrap_servers']} shows less than was read, but {why}: a broker is cut"
                " off from the others, and shows what it knew before. Nothing was changed. Try again."
            )

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        with self._client() as call:
            held = call("list_group_offsets", group).get(group, {})
            self._coordinators[group] = call("asked_coordinator", group)
        mirrored = {}
        for key, offset in held.items():
            if offset.offset >= 0:
                match = _MIRROR.match(offset.metadata or "")
                generation, epoch_id, token, number = match.groups() if match else (None,) * 4
                mirrored[key.topic, key.partition] = MirroredOffset(
                    offset=offset.offset, generation=_number(generation), epoch_id=_number(epoch_id), token=token,
                    number=_number(number),
                )  # fmt: skip
        return mirrored

    def mirror(
        self, group: str, heads: Sequence[Head], generation: int, epoch_id: int, token: str | None = None,
        number: int | None = None,
    ) -> None:  # fmt: skip
        written_by = [f"epochline {generation}:{epoch_id}", token, f"#{number}" if number else None]
        metadata = " ".join(filter(None, written_by))
        offsets = {
            KafkaPartition(head.tp.topic, head.tp.partition): OffsetAndMetadata(head.next_offset, metadata, -1)
            for head in heads
        }
        if not offsets:
            return

        def write() -> dict[KafkaPartition, type[KafkaError]]:
            answers = call("alter_group_offsets", group, offsets)
            refused = {key: error for key, error in answers.items() if error.errno}
            for error in refused.values():
                if error.retriable:  # For example, the group's coordinator is starting.
                    raise error
            return refused

        with self._client() as call:
            refused = _retrying()(write)
        if refused:
            key, error = next(iter(refused.items()))
            raise SourceError(
                f"consumer group {group} refuses the offsets of {len(refused)} partitions"
                f" ({key.topic}-{key.partition}: {error.__name__}). The group is reserved for epochline's mirror."
                " Stop any consumer that uses it."
            )

    def group_retention(self) -> timedelta | None:
        with self._client() as call:
            return topics.group_retention(call)

    def forget(self, group: str) -> None:
        def delete() -> str:
            answer: str = call("delete_groups", [group])[group]
            kind: type[KafkaError] | None = getattr(kafka_errors, answer, None)
            if kind is not None and kind.retriable:  # For example, the group's coordinator is starting.
                raise kind()
            return answer

        with self._client() as call:
            answer = _retrying()(delete)
        if answer not in ("OK", kafka_errors.GroupIdNotFoundError.__name__):
            raise SourceError(f"Kafka refuses to delete consumer group {group}: {answer}.")


def _retrying() -> Retrying:
    return Retrying(
        retry=retry_if_exception(lambda error: bool(getattr(error, "retriable", False))),
        stop=stop_after_delay(_PATIENCE_SECONDS),
        wait=wait_exponential(0.1, max=2),
        reraise=True,
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
