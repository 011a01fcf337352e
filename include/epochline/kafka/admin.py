"""kafka-python's admin client, with requests that it does not offer, and a check of the broker's version."""

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError, for_code
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest, IsolationLevel, OffsetForLeaderEpochRequest

from epochline.errors import SourceError
from epochline.kafka.client_log import detect_refusals

_ANY_LEADER = -1
_CONSUMER = -1
_UNKNOWN = -1
_NO_SESSION = -1
_FETCH_BYTES = 8 * 1024 * 1024
_WITH_ABORTED = 4
_LAST_BY_NAME = 12
"""Later versions of the request name topics by their ids."""


class EpochlineAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python has no types
    """The admin client. Its methods use the same internals as kafka-python's own requests."""

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Per partition the end offset of a leader epoch (KIP-320), None if the log has no epoch that late."""
        ends: dict[TopicPartition, int | None] = self._manager.run(self._async_leader_epoch_ends, epochs)
        return ends

    async def _async_leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for leader, keys in (await self._async_get_leader_for_partitions(set(epochs))).items():
            response = await self._manager.send(_request({key: epochs[key] for key in keys}), node_id=leader)
            for topic in response.topics:
                for partition in topic.partitions:
                    error = for_code(partition.error_code)
                    if error is not NoError:
                        raise error(f"the end of a leader epoch of {topic.topic}-{partition.partition}")
                    known = partition.end_offset != _UNKNOWN
                    key = TopicPartition(topic.topic, partition.partition)
                    found[key] = partition.end_offset if known else None
        return found

    def fetch_batches(self, key: TopicPartition, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Some whole batches from an offset on, below the last stable offset, aborted ones included.

        Returns the batches, and of each aborted transaction in them its producer and its first offset.
        """
        fetched: tuple[bytes, list[tuple[int, int]]] = self._manager.run(self._async_fetch_batches, key, offset)
        return fetched

    async def _async_fetch_batches(self, key: TopicPartition, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        ((leader, _),) = (await self._async_get_leader_for_partitions({key})).items()
        response = await self._manager.send(_fetch(key, offset), node_id=leader)
        (found,) = (partition for topic in response.responses for partition in topic.partitions)
        error = for_code(found.error_code)
        if error is not NoError:
            raise error(f"batches of {key.topic}-{key.partition} from offset {offset} on")
        aborted = [
            (transaction.producer_id, transaction.first_offset) for transaction in found.aborted_transactions or ()
        ]
        return bytes(found.records or b""), aborted


def new_admin(settings: Mapping[str, Any], patience_ms: int) -> EpochlineAdmin:
    """Connect an admin client; the caller closes it.

    Args:
        settings: what `epochline.config.kafka.python_settings` gave.
        patience_ms: how long to try to reach a broker.

    Raises:
        SourceAuthenticationError: the brokers refuse the login or a certificate.
        KafkaError, OSError: no broker could be reached.
    """
    with detect_refusals(settings["bootstrap_servers"], logging_in="sasl_mechanism" in settings):
        # The client asks a random server again and again: with its own pauses, of up to 30 s, it can spend its patience
        # on one that is down while the next one answers.
        return EpochlineAdmin(
            client_id="epochline", request_timeout_ms=10_000, bootstrap_timeout_ms=patience_ms,
            **{"reconnect_backoff_max_ms": 500, **settings},
        )  # fmt: skip


def _request(epochs: Mapping[TopicPartition, int]) -> Any:
    Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic  # noqa: N806
    by_topic: dict[str, list[Any]] = {}
    for key, epoch in epochs.items():
        partition = Topic.OffsetForLeaderPartition(
            partition=key.partition, current_leader_epoch=_ANY_LEADER, leader_epoch=epoch
        )
        by_topic.setdefault(key.topic, []).append(partition)
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[Topic(topic=name, partitions=asked) for name, asked in by_topic.items()]
    )


def _fetch(key: TopicPartition, offset: int) -> Any:
    Topic = FetchRequest.FetchTopic  # noqa: N806
    partition = Topic.FetchPartition(
        partition=key.partition, current_leader_epoch=_ANY_LEADER, fetch_offset=offset, last_fetched_epoch=_ANY_LEADER,
        log_start_offset=_UNKNOWN, partition_max_bytes=_FETCH_BYTES,
    )  # fmt: skip
    return FetchRequest(
        replica_id=_CONSUMER, max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES,
        isolation_level=IsolationLevel.READ_COMMITTED, session_id=0, session_epoch=_NO_SESSION,
        topics=[Topic(topic=key.topic, partitions=[partition])], forgotten_topics_data=[], rack_id="",
        min_version=_WITH_ABORTED, max_version=_LAST_BY_NAME,
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
            " need Kafka 2.8 or newer on every broker."
        )
