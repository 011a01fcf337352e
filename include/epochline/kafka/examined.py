"""How a cluster keeps what a pipeline reads and sends: settings of its brokers and topics, replicas, and its clock."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from epochline.config.kafka import SERVERS
from epochline.declare.source import KafkaSource
from epochline.errors import SourceUnavailableError
from epochline.kafka.admin import EpochlineAdmin, detect_refusals, new_admin
from epochline.kafka.tokens import kafka_python_settings

_PATIENCE_MS = 15_000
_OF_BROKERS = ("auto.create.topics.enable", "offsets.retention.minutes")
_OF_TOPICS = (
    "cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes",
    "unclean.leader.election.enable",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedTopic:
    """A topic. ``settings`` are empty if Kafka does not tell this login."""

    replicas: int
    """Replicas of the partition that has the fewest."""
    in_sync: int
    """Replicas in sync, of the partition that has the fewest in sync."""
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A cluster and its topics that exist."""

    brokers: int
    settings: Mapping[str, frozenset[str]]
    """By name, the values that its brokers have; a name is missing if Kafka does not tell this login."""
    topics: Mapping[str, ExaminedTopic]
    clock: float | None
    """The clock of the controller, in seconds since 1970; None if the cluster has no KRaft, or does not tell."""


def examine(settings: Mapping[str, str], sources: Sequence[KafkaSource], others: Collection[str]) -> Examined:
    """Ask a cluster about the topics that sources read, and about others by their names. Changes nothing.

    Raises:
        SourceUnavailableError: Kafka does not answer.
        SourceAuthenticationError: Kafka refuses the login.
    """
    servers = settings[SERVERS]
    try:
        with detect_refusals(servers), closing(new_admin(kafka_python_settings(settings), _PATIENCE_MS)) as admin:
            return _examined(admin, sources, others)
    except (KafkaError, OSError) as error:
        said = str(error) or type(error).__name__
        raise SourceUnavailableError(f"Kafka at {servers} does not answer: {said}") from error


def _examined(admin: EpochlineAdmin, sources: Sequence[KafkaSource], others: Collection[str]) -> Examined:
    brokers = [str(broker) for broker in admin.cluster()[1]]
    named = sorted({*others, *(topic for source in sources for topic in source.topics)})
    every = any(source.pattern is not None for source in sources)
    described = admin.describe_topics() if every else admin.describe_topics(named) if named else []
    held = [
        topic
        for topic in described
        if not topic["error_code"]
        and (topic["name"] in others or any(source.reads(topic["name"]) for source in sources))
    ]
    of_brokers = _configs(admin, ConfigResourceType.BROKER, brokers, _OF_BROKERS)
    of_topics = _configs(admin, ConfigResourceType.TOPIC, [topic["name"] for topic in held], _OF_TOPICS)
    return Examined(
        brokers=len(brokers),
        settings={
            name: frozenset(values[name] for values in of_brokers.values())
            for name in _OF_BROKERS
            if of_brokers and all(name in values for values in of_brokers.values())
        },
        topics={
            topic["name"]: ExaminedTopic(
                replicas=min(len(partition["replica_nodes"]) for partition in topic["partitions"]),
                in_sync=min(len(partition["isr_nodes"]) for partition in topic["partitions"]),
                settings=of_topics.get(topic["name"], {}),
            )
            for topic in held
        },
        clock=_clock(admin),
    )


def _configs(
    admin: EpochlineAdmin, kind: ConfigResourceType, names: Sequence[str], settings: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The settings of brokers or topics by name; empty where Kafka does not tell this login."""
    resources = [ConfigResource(kind, name, list(settings)) for name in names]
    with suppress(KafkaError):
        answers: Mapping[str, Any] = admin.describe_configs(resources, config_filter="all") if resources else {}
        found = answers.get(kind.name.lower(), {})
        return {name: {key: one["value"] for key, one in config.items()} for name, config in found.items()}
    return {}


def _clock(admin: EpochlineAdmin) -> float | None:
    """The leader of the controllers says of itself that it has caught up now."""
    with suppress(KafkaError, KeyError, StopIteration):
        (quorum,) = admin.describe_metadata_quorum()["topics"][0]["partitions"]
        leader = next(one for one in quorum["current_voters"] if one["replica_id"] == quorum["leader_id"])
        milliseconds = int(leader["last_caught_up_timestamp"])
        return milliseconds / 1000 if milliseconds > 0 else None
    return None
