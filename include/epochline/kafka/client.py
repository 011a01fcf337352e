"""librdkafka's clients: their configuration, and the translation of their errors."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from epochline.config.kafka import AWS_TOKENS, MECHANISM, SERVERS, TOKENS
from epochline.errors import (
    EpochlineError,
    SinkError,
    SinkUnavailableError,
    SourceAuthenticationError,
    SourceError,
    SourceUnavailableError,
)

_librdkafka_log = logging.getLogger("epochline.kafka.librdkafka")
# Errors reach the operator as exceptions. Without a handler, Python itself would print the lines.
_librdkafka_log.addHandler(logging.NullHandler())
_librdkafka_log.propagate = False

T = TypeVar("T")

_PAUSE_SECONDS = 0.1

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_TRANSIENT = (
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
_REMEDIES = {
    KafkaError._UNKNOWN_TOPIC: "Create the topic.",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "Create the topic.",
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Grant the connection's user access to the topic.",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant the connection's user access to the transactional id.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the connection's user IdempotentWrite on the cluster.",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "Lower transaction_timeout, or raise the brokers'"
    " transaction.max.timeout.ms.",
}


@dataclass(frozen=True, slots=True)
class Side:
    """Which classes of errors a client raises."""

    refused: type[EpochlineError]
    unavailable: type[EpochlineError]
    login: type[EpochlineError]


SINK = Side(SinkError, SinkUnavailableError, SinkError)
SOURCE = Side(SourceError, SourceUnavailableError, SourceAuthenticationError)


class Reports:
    """Collects the errors that librdkafka reports by callback: why a broker cannot be reached while a call waits."""

    def __init__(self, settings: Mapping[str, str], side: Side = SINK) -> None:
        self._servers = settings[SERVERS]
        self._side = side
        self._refusal: KafkaError | None = None
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Librdkafka's ``error_cb``."""
        self._last = error
        if _is_refusal(error):
            self._refusal = error

    @property
    def last(self) -> str:
        """The last report, as the end of a message; empty before the first report."""
        return f"; last report: {self._last.str()}" if self._last is not None else ""

    def check(self) -> None:
        """Raise the side's ``login`` error if a broker refused user, password or certificate: waiting does not help."""
        if self._refusal is not None:
            raise self._refused(self._refusal)

    def explained(self, error: KafkaError, doing: str) -> EpochlineError:
        """Translate an error of a call or a delivery into one of the side's. Its class says whether a retry helps.

        ``doing`` begins the message: what was tried, and on what.
        """
        refusal = error if _is_refusal(error) else self._refusal
        if refusal is not None:
            return self._refused(refusal)
        code, text = error.code(), error.str()
        if code in _FENCED:
            return self._side.unavailable(
                f"{doing} was refused by Kafka at {self._servers}: another process took over, or the broker had ended"
                f" the transaction after its time-out ({text}). What this process had not committed was discarded."
                " A retry begins with what is committed."
            )
        if _is_transient(error):
            report = f"Kafka at {self._servers}: {text}{self.last}"
            return self._side.unavailable(f"{doing} failed, and a retry may help: {report}")
        remedy = f" {_REMEDIES[code]}" if code in _REMEDIES else ""
        return self._side.refused(f"{doing} was refused by Kafka at {self._servers} ({error.name()}: {text}).{remedy}")

    @contextmanager
    def explaining(self, doing: str) -> Iterator[None]:
        """Translate librdkafka's exceptions in the block, as `explained` does."""
        try:
            yield
        except KafkaException as error:
            raise self.explained(error.args[0], doing) from error
        except SystemError as error:
            # The client raises it instead of a fatal error if the same poll reports the delivery of a record.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self.explained(error.__cause__.args[0], doing) from error

    def _refused(self, error: KafkaError) -> EpochlineError:
        return self._side.login(
            f"Kafka at {self._servers} refused the login, or a certificate was refused ({error.str()}). Nothing was"
            " changed, and a retry does not help. Correct the connection."
        )


def new_producer(settings: Mapping[str, str], reports: Reports, properties: Mapping[str, Any]) -> Producer:
    """An idempotent producer: it waits for all replicas, keeps the order and stores a resent record once.

    Raises the reports' error if librdkafka refuses a property, or cannot use a file that a property names.
    """
    with reports.explaining("making a producer"):
        return Producer(
            {
                **_configuration(settings, reports),
                "acks": "all",
                "enable.idempotence": True,
                # Kafka's Java producer puts a key into the same partition.
                "partitioner": "murmur2_random",
                # The topic limits the size of a record. The queue has to hold the largest one.
                "message.max.bytes": 128 * 1024 * 1024,
                "queue.buffering.max.kbytes": 256 * 1024,
                **properties,
            }
        )


def new_consumer(
    settings: Mapping[str, str], reports: Reports, isolation: str, properties: Mapping[str, Any] | None = None
) -> Consumer:
    """A consumer for assigned partitions. It commits no offsets and reports the end of a partition.

    Raises as `new_producer`.
    """
    with reports.explaining("making a consumer"):
        return Consumer(
            {
                **_configuration(settings, reports),
                # librdkafka requires an id; the consumer joins no group.
                "group.id": "epochline.reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                # A broker reports the end of a partition after this time.
                "fetch.wait.max.ms": 20,
                **(properties or {}),
            }
        )


def call_in_turns(
    call: Callable[[float], T], client: Producer | Consumer, reports: Reports, doing: str, seconds: float
) -> T:
    """Repeat a call with growing time-outs until it returns. So a refused login fails at once, not at the deadline.

    The client that makes the call is polled for reports in between. Raises the reports' error if Kafka refuses, or does
    not answer in time.
    """
    deadline, turn = time.monotonic() + seconds, 1.0
    while True:
        try:
            return call(turn)
        except KafkaException as error:
            with reports.explaining(doing):
                client.poll(0)  # It calls the callback with the reports.
            reports.check()
            if not _is_transient(error.args[0]) or time.monotonic() >= deadline:
                raise reports.explained(error.args[0], doing) from error
            time.sleep(_PAUSE_SECONDS)  # Some transient errors come without delay.
            turn *= 2


def partitions_of(client: Producer | Consumer, reports: Reports, topic: str, seconds: float) -> int | None:
    """How many partitions a topic has, or None if it does not exist. Raises as `call_in_turns`."""
    doing = f"looking up topic {topic}"
    listed = call_in_turns(lambda turn: client.list_topics(topic, timeout=turn), client, reports, doing, seconds)
    described = listed.topics[topic]
    if described.error is not None and described.error.code() not in _MISSING:
        raise reports.explained(described.error, doing)
    return None if described.error is not None else len(described.partitions)


def _configuration(settings: Mapping[str, str], reports: Reports) -> dict[str, Any]:
    return {
        **_with_login(settings, reports._side),
        "ssl.endpoint.identification.algorithm": "https",
        "client.id": "epochline",
        "error_cb": reports,
        "logger": _librdkafka_log,
    }


def _with_login(settings: Mapping[str, str], side: Side) -> Mapping[str, Any]:
    if settings.get(MECHANISM) not in (TOKENS, AWS_TOKENS):
        return settings
    # Here, because other logins need no client of HTTP.
    from epochline.kafka.tokens import librdkafka_settings

    try:
        return librdkafka_settings(settings)
    except SourceAuthenticationError as error:
        raise side.login(str(error)) from None
    except OSError as error:
        raise side.unavailable(f"Kafka at {settings[SERVERS]} cannot be asked: {error}") from None


def _is_refusal(error: KafkaError) -> bool:
    if "acquire SASL OAUTHBEARER token" in error.str():
        return False  # The client goes on with the token that it has, and asks for another one again.
    # A handshake also breaks off when a broker goes down, which is transient.
    return error.code() in _LOGIN or (error.code() == KafkaError._SSL and "certificate" in error.str())


def _is_transient(error: KafkaError) -> bool:
    code = error.code()
    if code in _MISSING:
        return False
    # Here, because Spark's workers never need it while they read.
    from kafka.errors import for_code

    # Positive codes are those of brokers, and kafka-python knows which ones are retriable.
    return error.retriable() or code in _TRANSIENT or (code > 0 and bool(for_code(code).retriable))
