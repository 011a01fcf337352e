"""Check, before a plan and before a seal, that a cluster takes what a Kafka sink will send."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.api_key import ApiKey

from epochline.config.kafka import SERVERS
from epochline.declare.topic import CONTROL_TOPIC, KafkaTopic
from epochline.errors import SinkError, SinkUnavailableError, SourceAuthenticationError
from epochline.kafka.admin import EpochlineAdmin, detect_refusals, new_admin
from epochline.kafka.tokens import kafka_python_settings

log = logging.getLogger(__name__)

_PATIENCE_MS = 15_000
_MAX_TIMEOUT = "transaction.max.timeout.ms"
_POLICY = "cleanup.policy"
_LARGEST = "max.message.bytes"


def check_topic(settings: Mapping[str, str], topic: KafkaTopic) -> None:
    """Check that each topic takes what the declaration sends. Changes nothing; the control topic may be missing.

    Settings that the connection's user may not read are not checked; a warning says so. Raises `SinkUnavailableError`
    if Kafka does not answer, `SinkError` if a topic is missing, or the cluster does not take the sink's transactions.
    """
    servers = settings[SERVERS]
    with _admin(settings, topic) as admin:
        for name in topic.topics:
            if _described(admin, name) is None:
                raise SinkError(
                    f"{topic}: Kafka at {servers} has no topic {name}. Nothing was planned. Create it, for example"
                    f" with kafka-topics.sh --create --topic {name} --partitions N."
                )
        if topic.semantics == "at_least_once":
            return
        if ApiKey.InitProducerId not in admin.api_versions():
            raise SinkError(
                f"{topic}: Kafka at {servers} has no transactions, which need Kafka 0.11. Nothing was planned."
            )
        _check_timeout(admin, topic)
        _check_control_topic(admin, topic)


def refuse_loop(settings: Mapping[str, str], topic: KafkaTopic, connection: str, source: Mapping[str, str]) -> None:
    """Refuse a sink whose topics the pipeline reads by another connection, which leads to the same cluster.

    Raises `SinkUnavailableError` if Kafka does not answer, `SinkError` if it is the same cluster.
    """
    clusters = set()
    for servers in (settings, source):
        with _admin(servers, topic) as admin:
            clusters.add(admin.cluster()[0])
    if len(clusters) == 1:
        raise SinkError(
            f"{topic}: the pipeline would read what it sends, without end: its source reads a topic of this name, and"
            f" the connections {connection} and {topic.connection} lead to one cluster, {clusters.pop()}. Nothing was"
            " planned. Read other topics, or send to another one."
        )


def make_control_topic(settings: Mapping[str, str], topic: KafkaTopic) -> None:
    """Create the control topic if it is missing. A repeat changes nothing.

    Raises `SinkUnavailableError` if Kafka does not answer, or does not show the new topic yet, `SinkError` if this user
    may not create it.
    """
    # Every publish reads the topic. Small segments are compacted often and keep it short.
    configs = {_POLICY: "compact", "segment.ms": "3600000", "segment.bytes": str(16 * 1024 * 1024)}
    wanted = {"num_partitions": 1, "replication_factor": -1, "configs": configs}
    with _admin(settings, topic) as admin:
        if _described(admin, CONTROL_TOPIC) is not None:
            return
        try:
            admin.create_topics({CONTROL_TOPIC: wanted})
            log.info("topic.created topic=%s", CONTROL_TOPIC)
        except TopicAlreadyExistsError:
            return  # Another pipeline's plan created it meanwhile.
        admin.wait_for_topics([CONTROL_TOPIC])
        if _described(admin, CONTROL_TOPIC) is None:
            raise SinkUnavailableError(f"{CONTROL_TOPIC} was created, but Kafka does not show it yet. A retry helps.")


def check_records(
    settings: Mapping[str, str], topic: KafkaTopic, name: str, partition: int | None, largest: int
) -> None:
    """Check that one of the sink's topics takes the records of an epoch.

    ``partition`` is the highest one that a record names, ``largest`` the bytes of key and value of the largest record.
    Raises `SinkUnavailableError` if Kafka does not answer, `SinkError` if the topic has fewer partitions, or takes
    smaller records only.
    """
    with _admin(settings, topic) as admin:
        described = _described(admin, name)
        if described is not None and partition is not None and partition >= len(described["partitions"]):
            raise SinkError(
                f"{topic}: a record is for partition {partition}, but {name} has {len(described['partitions'])},"
                " counted from 0. Nothing was sealed. Add partitions, or correct the partition column."
            )
        for allowed in map(int, _values(admin, ConfigResourceType.TOPIC, [name], _LARGEST, topic)):
            if largest > allowed:
                raise SinkError(
                    f"{topic}: a record has {largest} bytes, but {_LARGEST} of {name} is {allowed}. Nothing was"
                    f" sealed. Raise {_LARGEST} of the topic, or leave such records out in the parse."
                )


def _check_timeout(admin: EpochlineAdmin, topic: KafkaTopic) -> None:
    wanted = int(topic.transaction_timeout.total_seconds() * 1000)
    # Any broker may coordinate the sink's transactions.
    brokers = [str(broker) for broker in admin.cluster()[1]]
    allowed = min(map(int, _values(admin, ConfigResourceType.BROKER, brokers, _MAX_TIMEOUT, topic)), default=wanted)
    if wanted > allowed:
        raise SinkError(
            f"{topic}: transaction_timeout is {wanted} ms, and the brokers allow {allowed} ms at most ({_MAX_TIMEOUT})."
            f" Nothing was planned. Lower transaction_timeout, or raise {_MAX_TIMEOUT}."
        )


def _check_control_topic(admin: EpochlineAdmin, topic: KafkaTopic) -> None:
    described = _described(admin, CONTROL_TOPIC)
    if described is None:
        return
    partitions = len(described["partitions"])
    if partitions != 1:
        raise SinkError(
            f"{topic}: {CONTROL_TOPIC} has {partitions} partitions, and markers need exactly one. Nothing"
            " was planned. First let every pipeline publish what it has committed, because the markers will be lost."
            " Then delete the topic; the next plan creates it."
        )
    for policy in _values(admin, ConfigResourceType.TOPIC, [CONTROL_TOPIC], _POLICY, topic):
        if policy != "compact":
            raise SinkError(
                f"{topic}: {_POLICY} of {CONTROL_TOPIC} is {policy}, so Kafka would delete markers that are still"
                " needed. Nothing was planned. Set it to compact."
            )


def _described(admin: EpochlineAdmin, name: str) -> Mapping[str, Any] | None:
    described: Mapping[str, Any]
    [described] = admin.describe_topics([name])
    error = for_code(described["error_code"])
    if error is UnknownTopicOrPartitionError:
        return None
    if described["error_code"]:
        raise error(f"topic {name}")
    return described


def _values(
    admin: EpochlineAdmin, kind: ConfigResourceType, names: Sequence[str], setting: str, topic: KafkaTopic
) -> list[str]:
    """A setting of topics or brokers, without those that the connection's user may not see."""
    resources = [ConfigResource(kind, name, [setting]) for name in names]
    answers: Mapping[str, Mapping[str, Mapping[str, Any]]] = admin.describe_configs(resources, config_filter="all")
    # kafka-python returns an empty configuration on an error, and a broker refuses only if the user lacks the right.
    configs = [config for answer in answers.values() for config in answer.values() if setting in config]
    if len(configs) < len(resources):
        log.warning("topic.unchecked sink=%s config=%s reason=not shown to this user", topic, setting)
    return [config[setting]["value"] for config in configs]


@contextmanager
def _admin(settings: Mapping[str, str], topic: KafkaTopic) -> Iterator[EpochlineAdmin]:
    servers = settings[SERVERS]
    try:
        admin = new_admin(kafka_python_settings(settings), _PATIENCE_MS)
        with detect_refusals(servers), closing(admin):
            yield admin
    except SourceAuthenticationError as error:
        raise SinkError(f"{topic}: {error}") from error
    except (KafkaError, OSError) as error:
        retryable = isinstance(error, OSError) or error.retriable
        kind = SinkUnavailableError if retryable else SinkError
        raise kind(
            f"{topic} could not be checked: Kafka at {servers} refused or did not answer"
            f" ({type(error).__name__}: {error})."
        ) from error
