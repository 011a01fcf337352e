"""kafka-python's admin client, with the one request that it does not offer: where the log of a leader epoch ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError, for_code
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

_ANY_LEADER = -1
_CONSUMER = -1
_UNKNOWN = -1


class EpochlineAdmin(KafkaAdminClient):  # type: ignore[misc] # kafka-python has no types
    """The admin client. What it adds goes through the same internals as its own requests; see `leader_epoch_ends`."""

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Per partition the end of the log of a leader epoch (KIP-320), None where the log knows none so late.

        Raises:
            KafkaError: a broker refused, or did not answer.
        """
        ends: dict[TopicPartition, int | None] = self._manager.run(self._async_leader_epoch_ends, epochs)
        return ends

    async def _async_leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for leader, keys in (await self._async_get_leader_for_partitions(set(epochs))).items():
            response = await self._manager.send(_request({key: epochs[key] for key in keys}), node_id=leader)
            for topic in response.topics:
                for one in topic.partitions:
                    error = for_code(one.error_code)
                    if error is not NoError:
                        raise error(f"the end of a leader epoch of {topic.topic}-{one.partition}")
                    known = one.end_offset != _UNKNOWN
                    found[TopicPartition(topic.topic, one.partition)] = one.end_offset if known else None
        return found


def _request(epochs: Mapping[TopicPartition, int]) -> Any:
    Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic  # noqa: N806
    by_topic: dict[str, list[Any]] = {}
    for key, epoch in epochs.items():
        one = Topic.OffsetForLeaderPartition(
            partition=key.partition, current_leader_epoch=_ANY_LEADER, leader_epoch=epoch
        )
        by_topic.setdefault(key.topic, []).append(one)
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[Topic(topic=name, partitions=some) for name, some in by_topic.items()]
    )
