"""kafka-python's admin client: requests that it does not offer, the broker's version, and what its log says.

While a broker is away, kafka-python logs the same lines several times a second. Its bootstrap retries after every
error, even a wrong password, and only logs the reason. A retry cannot help then, and some brokers lock an account after
several.
"""

import copy
import logging
import re
import ssl
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaError, NoError, SaslAuthenticationFailedError, for_code
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest, IsolationLevel, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from epochline.config.versions import RANGES
from epochline.errors import SourceAuthenticationError, SourceError
from epochline.kafka.agreement import Told
from epochline.kafka.tokens import TOKEN_PROVIDER

_CONSUMER = _ANY_LEADER = _UNKNOWN = _NO_SESSION = -1
_GROUP = 0
_MANY_COORDINATORS = 4
"""The first version of a request that asks for the coordinators of many groups."""
_ONE_BROKER_MS = 5_000
_FETCH_BYTES = 8 * 1024 * 1024
_WITH_ABORTED = 4
_LAST_BY_NAME = 12
"""Later versions of the request name topics by their ids."""

_EpochTopic, _FetchTopic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic, FetchRequest.FetchTopic


class EpochlineAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python has no types
    """The admin client. Its methods use the same internals as kafka-python's own requests."""

    def cluster(self) -> tuple[str, list[int]]:
        """The id of the cluster, and the ids of the brokers that are up.

        `describe_cluster` of kafka-python raises KeyError for brokers before 3.7.
        """
        metadata = self._manager.run(self._get_cluster_metadata, [])
        return metadata["cluster_id"], [broker["node_id"] for broker in metadata["brokers"]]

    async def _find_coordinator_ids(self, *args: Any, **options: Any) -> dict[str, int]:
        # kafka-python keeps the first answer for good: each retry would ask a node that has died since.
        self._manager.cluster._coordinators.clear()
        found: dict[str, int] = await super()._find_coordinator_ids(*args, **options)
        return found

    def _list_group_offsets_requests(self, *args: Any, **options: Any) -> Iterator[tuple[str | None, Any]]:
        # A coordinator that has just taken over knows writes that its followers have yet to confirm. Unless it is asked
        # for stable offsets, it answers as if it had none of them, which would look like a Kafka that went back.
        for group, request in super()._list_group_offsets_requests(*args, **options):
            request.require_stable = True
            yield group, request

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Per partition the end offset of a leader epoch (KIP-320), None if the log has no epoch that late."""
        ends: dict[TopicPartition, int | None] = self._manager.run(self._async_leader_epoch_ends, epochs)
        return ends

    async def _async_leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        ends: dict[TopicPartition, int | None] = {}
        for leader, keys in (await self._async_get_leader_for_partitions(set(epochs))).items():
            by_topic: dict[str, list[Any]] = defaultdict(list)
            for key in keys:
                partition = _EpochTopic.OffsetForLeaderPartition(
                    partition=key.partition, current_leader_epoch=_ANY_LEADER, leader_epoch=epochs[key]
                )
                by_topic[key.topic].append(partition)
            topics = [_EpochTopic(topic=name, partitions=partitions) for name, partitions in by_topic.items()]
            request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)
            response = await self._manager.send(request, node_id=leader)
            for topic in response.topics:
                for partition in topic.partitions:
                    key = TopicPartition(topic.topic, partition.partition)
                    _raise(partition.error_code, f"the end of a leader epoch of {key.topic}-{key.partition}")
                    ends[key] = None if partition.end_offset == _UNKNOWN else partition.end_offset
        return ends

    def asked_coordinator(self, group: str) -> int | None:
        """The broker that was last asked about a group; None if nobody was."""
        node: int | None = self._manager.cluster.get_coordinator(group)
        return node

    def told_by_each(self, topics: Sequence[str], group: str) -> dict[int, Told | None]:
        """What each broker says of topics and a group; None for one that does not answer."""
        told: dict[int, Told | None] = self._manager.run(self._async_told_by_each, topics, group)
        return told

    async def _async_told_by_each(self, topics: Sequence[str], group: str) -> dict[int, Told | None]:
        told: dict[int, Told | None] = {}
        for broker in (await self._get_cluster_metadata([]))["brokers"]:
            try:
                told[broker["node_id"]] = await self._async_told_by(broker["node_id"], topics, group)
            except (KafkaError, OSError):
                told[broker["node_id"]] = None
        return told

    async def _async_told_by(self, broker: int, topics: Sequence[str], group: str) -> Told:
        of_topics = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
        )  # fmt: skip
        many = self._manager.broker_version_data.api_version(FindCoordinatorRequest) >= _MANY_COORDINATORS
        of_group = (
            FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=[group], min_version=_MANY_COORDINATORS)
            if many
            else FindCoordinatorRequest(key=group, key_type=_GROUP, max_version=_MANY_COORDINATORS - 1)
        )
        metadata = await self._manager.send(of_topics, node_id=broker, request_timeout_ms=_ONE_BROKER_MS)
        answer = await self._manager.send(of_group, node_id=broker, request_timeout_ms=_ONE_BROKER_MS)
        found = answer.coordinators[0] if many else answer
        return Told(
            leaders={
                (topic.name, one.partition_index): one.leader_epoch
                for topic in metadata.topics
                for one in topic.partitions
            },
            coordinator=None if found.error_code else found.node_id,
            brokers=frozenset(one.node_id for one in metadata.brokers),
        )

    def fetch_batches(self, key: TopicPartition, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Some whole batches from an offset on, below the last stable offset, aborted ones included.

        Returns the batches, and of each aborted transaction in them its producer and its first offset.
        """
        fetched: tuple[bytes, list[tuple[int, int]]] = self._manager.run(self._async_fetch_batches, key, offset)
        return fetched

    async def _async_fetch_batches(self, key: TopicPartition, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        ((leader, _),) = (await self._async_get_leader_for_partitions({key})).items()
        wanted = _FetchTopic.FetchPartition(
            partition=key.partition, current_leader_epoch=_ANY_LEADER, fetch_offset=offset,
            last_fetched_epoch=_ANY_LEADER, log_start_offset=_UNKNOWN, partition_max_bytes=_FETCH_BYTES,
        )  # fmt: skip
        request = FetchRequest(
            replica_id=_CONSUMER, max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES,
            isolation_level=IsolationLevel.READ_COMMITTED, session_id=0, session_epoch=_NO_SESSION,
            topics=[_FetchTopic(topic=key.topic, partitions=[wanted])], forgotten_topics_data=[], rack_id="",
            min_version=_WITH_ABORTED, max_version=_LAST_BY_NAME,
        )  # fmt: skip
        response = await self._manager.send(request, node_id=leader)
        (fetched,) = (partition for topic in response.responses for partition in topic.partitions)
        _raise(fetched.error_code, f"batches of {key.topic}-{key.partition} from offset {offset} on")
        aborted = [(ended.producer_id, ended.first_offset) for ended in fetched.aborted_transactions or ()]
        return bytes(fetched.records or b""), aborted


def _raise(error_code: int, subject: str) -> None:
    error = for_code(error_code)
    if error is not NoError:
        raise error(subject)


def new_admin(settings: Mapping[str, Any], patience_ms: int) -> EpochlineAdmin:
    """Connect an admin client, with what `epochline.kafka.tokens.kafka_python_settings` gave; the caller closes it.

    Raises:
        SourceAuthenticationError: the brokers or an issuer of tokens refuse the login or a certificate.
        KafkaError, OSError: no broker, or no issuer, could be reached within ``patience_ms``.
    """
    with detect_refusals(settings["bootstrap_servers"], logging_in="sasl_mechanism" in settings):
        if (tokens := settings.get(TOKEN_PROVIDER)) is not None:
            tokens.token()
        # The client asks a random server again and again: with its own pauses, of up to 30 s, it can spend its patience
        # on one that is down while the next one answers.
        return EpochlineAdmin(
            client_id="epochline", request_timeout_ms=10_000, bootstrap_timeout_ms=patience_ms,
            **{"reconnect_backoff_max_ms": 500, **settings},
        )  # fmt: skip


NEEDED: Mapping[ApiKey, tuple[int, str]] = {
    ApiKey.InitProducerId: (0, "transactions (Kafka 0.11)"),
    ApiKey.ListOffsets: (2, "the last stable offset (Kafka 0.11)"),
    ApiKey.Metadata: (10, "topic ids (Kafka 2.8)"),
    ApiKey.DescribeProducers: (0, "the producers of a partition (Kafka 2.8)"),
}
"""Per request, the lowest sufficient version, and what it provides."""


def check_versions(servers: str, offered: Mapping[ApiKey, tuple[int, int]]) -> None:
    """Raise `SourceError`, naming what a broker lacks, unless it offers every request that a plan needs.

    ``offered`` has per request the lowest and highest version that the broker supports.
    """
    lacking = [why for key, (version, why) in NEEDED.items() if offered.get(key, (0, -1))[1] < version]
    if lacking:
        raise SourceError(
            f"Kafka at {servers} is too old: it lacks {', '.join(lacking)}. Nothing was planned. Exactly-once epochs"
            f" need Kafka {RANGES['Kafka'].oldest} or newer on every broker."
        )


_EVERY_SECONDS = 60.0
_KEPT = 1_000
# "backoff 0.42 secs" differs from one repeat to the next.
_DURATION = re.compile(r"\d+\.\d+ sec")


class RepeatsOnceAMinute(logging.Handler):
    """Passes a record to the root logger's handlers, unless an equal one was passed in the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record on, or count it. The next one that is passed tells the count."""
        text = record.getMessage()
        line, now = (record.name, _DURATION.sub("sec", text)), time.monotonic()
        passed_at, left_out = self._passed.get(line, (now - _EVERY_SECONDS, 0))
        if now - passed_at < _EVERY_SECONDS:
            self._passed[line] = passed_at, left_out + 1
            return
        if len(self._passed) >= _KEPT:
            self._passed.clear()
        self._passed[line] = now, 0
        if left_out:
            record = copy.copy(record)
            record.msg, record.args = f"{text} ({left_out} times more in the last {now - passed_at:.0f} s)", None
        logging.getLogger().callHandlers(record)


def shorten_log() -> None:
    """Make kafka-python say each warning and error once a minute, and nothing less severe. A repeat changes nothing."""
    logger = logging.getLogger("kafka")
    # kafka-python logs forty lines about sockets per request.
    logger.setLevel(logging.WARNING)
    if not any(isinstance(handler, RepeatsOnceAMinute) for handler in logger.handlers):
        # A handler, and not a filter: `detect_refusals` reads every line, also those that are left out.
        logger.addHandler(RepeatsOnceAMinute())
        logger.propagate = False


class _Refusals(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            self.seen += [arg for arg in record.args if isinstance(arg, BaseException)]


@contextmanager
def detect_refusals(servers: str, *, logging_in: bool = False) -> Iterator[None]:
    """Raise the refusal that caused an error of the block; other errors pass unchanged.

    With ``logging_in`` the block logs in by SASL. Then a broker that closes every connection has refused the login:
    kafka-python loses the broker's answer if the connection closes right after it.

    Raises:
        SourceAuthenticationError: a broker refused the user, the password or a certificate, or a certificate's file
            cannot be used. The message holds no secret.
    """
    logger, refusals = logging.getLogger("kafka"), _Refusals()
    logger.addHandler(refusals)
    try:
        yield
    except Exception as error:
        reasons = [_refusal(seen) for seen in (error, *refusals.seen)]
        if logging_in and _all_closed(refusals.seen):
            reasons.append("it closes every connection at the login, so user, password or mechanism are likely wrong")
        for reason in reasons:
            if reason is not None:
                raise SourceAuthenticationError(
                    f"Kafka at {servers}: {reason}. Nothing was changed, and a retry does not help."
                    " Correct the connection."
                ) from error
        raise
    finally:
        logger.removeHandler(refusals)


def _all_closed(seen: Sequence[BaseException]) -> bool:
    lost = [str(error) for error in seen if isinstance(error, KafkaConnectionError)]
    return bool(lost) and all("socket disconnected" in text for text in lost)


def _refusal(error: BaseException) -> str | None:
    if isinstance(error, SaslAuthenticationFailedError):
        return f"the user or password was refused ({error})"
    if isinstance(error, ssl.SSLError | FileNotFoundError | PermissionError):
        return f"a certificate or key cannot be used ({error})"
    if "certificate" in str(error).lower():
        return f"a certificate was refused ({error})"
    return None
