"""librdkafka's clients: how they are configured, and what becomes of their errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka.errors import for_code

from epochline.config.kafka import SERVERS
from epochline.errors import SinkError, SinkUnavailableError

_lines = logging.getLogger("epochline.kafka.librdkafka")
# Whatever an operator must know comes back as an error; without a handler, Python itself would print the lines.
_lines.addHandler(logging.NullHandler())
_lines.propagate = False

T = TypeVar("T")

_PAUSE_SECONDS = 0.1

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_PASSING = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    # A new producer gets another producer id.
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
)
_MISSING = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
_LOGIN = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM)
_TODO = {
    KafkaError._UNKNOWN_TOPIC: "Create the topic.",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "Create the topic.",
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Give the connection's user the right to the topic.",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Give the connection's user the right to the transactional id.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Give the connection's user the right IdempotentWrite on the cluster.",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "Lower transaction_timeout, or raise the brokers'"
    " transaction.max.timeout.ms.",
}


class Reports:
    """What librdkafka reports beside the answers of calls: why a broker could not be reached, while a call waits.

    Args:
        settings: what `epochline.config.kafka.broker_settings` gave.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers = settings[SERVERS]
        self._refusal: KafkaError | None = None
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Librdkafka's ``error_cb``."""
        self._last = error
        if _is_refusal(error):
            self._refusal = error

    def check(self) -> None:
        """Whether the brokers still may let us in.

        Raises:
            SinkError: user, password or certificate were refused: no waiting helps.
        """
        if self._refusal is not None:
            raise self._refused(self._refusal)

    def explained(self, error: KafkaError, doing: str) -> SinkError:
        """Our error for one of librdkafka's: the class says whether another try helps.

        Args:
            error: what a call or a delivery ended with.
            doing: what was tried, and on what; begins the message.
        """
        refusal = error if _is_refusal(error) else self._refusal
        if refusal is not None:
            return self._refused(refusal)
        code, said = error.code(), error.str()
        if code in _FENCED:
            return SinkUnavailableError(
                f"{doing} was refused by Kafka at {self._servers}: another process took over, or the broker had ended"
                f" the transaction after its time-out ({said}). What this process had not committed was discarded;"
                " another try begins with what is committed."
            )
        if _passes(error):
            last = f"; last heard: {self._last.str()}" if self._last is not None else ""
            return SinkUnavailableError(
                f"{doing} failed, and another try may help: Kafka at {self._servers}: {said}{last}"
            )
        todo = f" {_TODO[code]}" if code in _TODO else ""
        return SinkError(f"{doing} was refused by Kafka at {self._servers} ({error.name()}: {said}).{todo}")

    @contextmanager
    def explaining(self, doing: str) -> Iterator[None]:
        """Turn librdkafka's exceptions of the block into ours.

        Raises:
            SinkUnavailableError: Kafka does not answer, or we were fenced.
            SinkError: Kafka refuses.
        """
        try:
            yield
        except KafkaException as error:
            raise self.explained(error.args[0], doing) from error
        except SystemError as error:
            # Raised in place of a fatal error where a record's delivery is reported in the same turn.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self.explained(error.__cause__.args[0], doing) from error

    def _refused(self, error: KafkaError) -> SinkError:
        return SinkError(
            f"Kafka at {self._servers} and this client do not trust each other ({error.str()}). Nothing was changed,"
            " and another try gives the same. Correct the connection."
        )


def new_producer(settings: Mapping[str, str], reports: Reports, properties: Mapping[str, Any]) -> Producer:
    """A producer that waits for all replicas, keeps the order and stores nothing twice when it sends again.

    Raises:
        SinkError: a property or a file that it names cannot be used.
    """
    with reports.explaining("making a producer"):
        return Producer(
            {
                **_configuration(settings, reports),
                "acks": "all",
                "enable.idempotence": True,
                # A record with a key goes to the partition that Kafka's own Java producer would choose.
                "partitioner": "murmur2_random",
                # How large a record may be is for the topic to say. The queue has to hold the largest.
                "message.max.bytes": 128 * 1024 * 1024,
                "queue.buffering.max.kbytes": 256 * 1024,
                **properties,
            }
        )


def new_consumer(settings: Mapping[str, str], reports: Reports, isolation: str) -> Consumer:
    """A consumer that is told what to read, commits no offset and says where a partition ends.

    Raises:
        SinkError: a property or a file that it names cannot be used.
    """
    with reports.explaining("making a consumer"):
        return Consumer(
            {
                **_configuration(settings, reports),
                # librdkafka wants a name; no group is joined.
                "group.id": "epochline.reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                # A broker answers so late that it has nothing more: the end of a partition is known no sooner.
                "fetch.wait.max.ms": 20,
            }
        )


def patiently(
    call: Callable[[float], T], client: Producer | Consumer, reports: Reports, doing: str, seconds: float
) -> T:
    """The answer of a call that takes a time-out, waited for in short turns: a refused login is said at once.

    Raises:
        SinkUnavailableError: no answer in time.
        SinkError: Kafka refuses.
    """
    deadline, turn = time.monotonic() + seconds, 1.0
    while True:
        try:
            return call(turn)
        except KafkaException as error:
            with reports.explaining(doing):
                client.poll(0)  # Reports are made to who polls.
            reports.check()
            if not _passes(error.args[0]) or time.monotonic() >= deadline:
                raise reports.explained(error.args[0], doing) from error
            time.sleep(_PAUSE_SECONDS)  # Some refusals that pass come at once.
            turn *= 2


def partitions_of(client: Producer | Consumer, reports: Reports, topic: str, seconds: float) -> int | None:
    """How many partitions a topic has; None where there is no such topic.

    Raises:
        SinkUnavailableError: no answer in time.
        SinkError: Kafka refuses.
    """
    doing = f"asking for topic {topic}"
    one = patiently(lambda turn: client.list_topics(topic, timeout=turn), client, reports, doing, seconds).topics[topic]
    if one.error is not None and one.error.code() not in _MISSING:
        raise reports.explained(one.error, doing)
    return None if one.error is not None else len(one.partitions)


def _configuration(settings: Mapping[str, str], reports: Reports) -> dict[str, Any]:
    return {
        **settings,
        "ssl.endpoint.identification.algorithm": "https",
        "client.id": "epochline",
        "error_cb": reports,
        "logger": _lines,
    }


def _is_refusal(error: KafkaError) -> bool:
    # A handshake also breaks off where a broker goes down: that passes.
    return error.code() in _LOGIN or (error.code() == KafkaError._SSL and "certificate" in error.str())


def _passes(error: KafkaError) -> bool:
    code = error.code()
    if code in _MISSING:
        return False
    # Of the codes of brokers kafka-python knows which pass by themselves; those of librdkafka itself are negative.
    return error.retriable() or code in _PASSING or (code > 0 and bool(for_code(code).retriable))
