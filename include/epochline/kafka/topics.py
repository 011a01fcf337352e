"""What Kafka says of topics: which ones a source reads, their offsets, their retention, and which are compacted.

Each function takes ``call``, which calls a method of the admin client by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel

from epochline.declare.source import KafkaSource, OneSource
from epochline.errors import SourceError, TopicMissingError
from epochline.protocol.log_ends import Retention
from epochline.protocol.offsets import TopicPartition

_UNKNOWN_TOPIC = 3


def matching(source: OneSource, call: Callable[..., Any], cluster_id: str) -> list[Mapping[str, Any]]:
    """Descriptions of the topics that the source names, or whose whole name matches its pattern."""
    if source.pattern is not None:
        every = call("describe_topics")
        return [t for t in every if not t["is_internal"] and re.fullmatch(source.pattern, t["name"])]
    topics: list[Mapping[str, Any]] = call("describe_topics", list(source.topics))
    missing = sorted(t["name"] for t in topics if t["error_code"] == _UNKNOWN_TOPIC)
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
    asked = () if any(source.pattern is not None for source in sources) else (named,)
    described = call("describe_topics", *asked) if sources else []
    return {
        KafkaPartition(name, partition["partition_index"]): TopicPartition(
            topic=name, partition=partition["partition_index"], topic_id=str(topic["topic_id"])
        )
        for topic in described
        for name in [topic["name"]]
        if not topic["error_code"]
        and any(one.reads(name) and not (one.pattern and topic["is_internal"]) for one in sources)
        for partition in topic["partitions"]
        if partition["leader_id"] >= 0 and not partition["error_code"]
    }


def offsets(keys: Iterable[KafkaPartition], where: OffsetSpec, call: Callable[..., Any]) -> list[int]:
    """The offset of each partition at one end of its log, for a ``read_committed`` consumer, in the given order."""
    asked = dict.fromkeys(keys, where)
    found = call("list_partition_offsets", asked, IsolationLevel.READ_COMMITTED) if asked else {}
    return [found[key].offset for key in asked]


def retention(topics: Sequence[str], call: Callable[..., Any]) -> dict[str, Retention]:
    """How long Kafka keeps the records of each topic; nothing if it does not tell this login."""
    names = ["cleanup.policy", "retention.ms", "retention.bytes"]
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    configs = call("describe_configs", asked, config_filter="all")["topic"] if asked else {}
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
    setting, broker = "offsets.retention.minutes", call("describe_cluster")["brokers"][0]["broker_id"]
    try:
        asked = [ConfigResource(ConfigResourceType.BROKER, str(broker), [setting])]
        config = call("describe_configs", asked, config_filter="all")["broker"][str(broker)]
        return timedelta(minutes=int(config[setting]["value"]))
    except (KafkaError, KeyError, TypeError):  # kafka-python leaves it empty if Kafka refuses.
        return None


def compacted(topics: set[str], call: Callable[..., Any]) -> set[str]:
    """Topics of which Kafka may delete any record that has a successor under its key.

    Raises:
        SourceError: Kafka does not tell this login.
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
