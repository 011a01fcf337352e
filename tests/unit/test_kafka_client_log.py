"""Kafka's clients: their properties and versions, their fatal errors, and their log, each line of it once a minute."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from epochline.config.kafka import SERVERS, broker_settings, python_settings, travelling_settings
from epochline.errors import ConfigurationError, SinkUnavailableError, SourceAuthenticationError, SourceError
from epochline.kafka import admin
from epochline.kafka.admin import RepeatsOnceAMinute, check_versions, detect_refusals, shorten_log
from epochline.kafka.client import Reports
from tests.kafka_log import Said, log_of_kafka


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admin, "time", clock)
    return clock


@pytest.fixture
def said() -> Iterator[Said]:
    with log_of_kafka() as said:
        yield said


@pytest.fixture
def shortened(said: Said) -> logging.Logger:
    return logging.getLogger("kafka.cluster")


def test_a_repeated_line_is_said_once_a_minute_with_the_number_of_repeats(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    for _ in range(48):
        shortened.warning("No node available for metadata refresh - backoff/retry")
        clock.now += 1.0
    clock.now += 20
    shortened.warning("No node available for metadata refresh - backoff/retry")
    clock.now += 60
    shortened.warning("No node available for metadata refresh - backoff/retry")

    line = "No node available for metadata refresh - backoff/retry"
    assert said.messages == [line, f"{line} (47 times more in the last 68 s)", line]


def test_lines_that_differ_in_a_pause_alone_are_one_and_other_lines_are_all_said(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    for broker, pause in ((1, 0.11), (1, 0.42), (2, 0.42)):
        shortened.warning("Bootstrap connection to %s failed (backoff %s secs)", broker, pause)
    logging.getLogger("kafka.net").error("Bootstrap connection to 1 failed (backoff 0.11 secs)")

    assert [(one.name, one.levelname) for one in said.records] == [
        ("kafka.cluster", "WARNING"), ("kafka.cluster", "WARNING"), ("kafka.net", "ERROR"),
    ]  # fmt: skip
    assert "failed (backoff 0.11 secs)" in said.messages[0]


def test_nothing_below_a_warning_is_said_and_a_second_call_doubles_nothing(
    clock: Clock, shortened: logging.Logger, said: Said
) -> None:
    shorten_log()
    shortened.info("about sockets")
    shortened.warning("once")

    assert said.messages == ["once"]
    assert sum(isinstance(one, RepeatsOnceAMinute) for one in logging.getLogger("kafka").handlers) == 1


def test_a_refused_login_is_found_in_a_line_that_was_left_out(clock: Clock, shortened: logging.Logger) -> None:
    """A second refusal within the minute is reported like the first."""

    def fail() -> None:
        with detect_refusals("here:9092"):
            shortened.error("Connection failed: %s", OSError("certificate unknown"))
            raise TimeoutError("no answer")

    for _ in range(2):
        with pytest.raises(SourceAuthenticationError, match="a certificate was refused"):
            fail()


REPORTS = Reports({SERVERS: "here:9092"})


def test_a_fatal_error_that_a_delivery_report_hid_is_reported_as_itself() -> None:
    """X3: where both come in one turn, the client raises a SystemError about the report."""

    def turn() -> None:
        try:
            raise KafkaException(KafkaError(KafkaError._FENCED, "somebody took over", fatal=True))
        except KafkaException as error:
            raise SystemError("_delivered returned a result with an exception set") from error

    with pytest.raises(SinkUnavailableError, match="another process took over"), REPORTS.explaining("sending"):
        turn()


def test_another_system_error_is_left_alone() -> None:
    with pytest.raises(SystemError, match="of Python"), REPORTS.explaining("sending"):
        raise SystemError("of Python")


def spoken_by(version: tuple[int, ...]) -> dict[ApiKey, tuple[int, int]]:
    return {ApiKey(key): versions for key, versions in BROKER_API_VERSIONS[version].items()}


@pytest.mark.parametrize("version", sorted(v for v in BROKER_API_VERSIONS if v >= (2, 8)))
def test_a_broker_since_2_8_will_do(version: tuple[int, ...]) -> None:
    """P16."""
    check_versions("here:9092", spoken_by(version))


@pytest.mark.parametrize("version", sorted(v for v in BROKER_API_VERSIONS if v < (2, 8)))
def test_an_older_broker_is_refused_by_what_it_lacks(version: tuple[int, ...]) -> None:
    """P16: a retry does not make it newer."""
    with pytest.raises(SourceError, match=r"here:9092 is too old: it lacks .*topic ids") as refused:
        check_versions("here:9092", spoken_by(version))

    assert not refused.value.retryable
    assert ("transactions" in str(refused.value)) == (version < (0, 11))


SECRET = "canary-5e77"
SASL = {
    "bootstrap.servers": "k:9093", "security.protocol": "sasl_ssl", "sasl.mechanism": "scram-sha-512",
    "ssl.ca.location": "/etc/ca.pem",
}  # fmt: skip


def test_login_and_password_of_the_connection_are_those_of_sasl() -> None:
    assert python_settings(broker_settings("here", SASL, login="me", password=SECRET)) == {
        "bootstrap_servers": "k:9093", "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me", "sasl_plain_password": SECRET, "ssl_cafile": "/etc/ca.pem",
    }  # fmt: skip


def test_a_host_stands_for_the_brokers_where_none_are_named() -> None:
    assert broker_settings("here", {}, host="k") == {"bootstrap.servers": "k:9092"}
    assert broker_settings("here", {}, host="k", port=1) == {"bootstrap.servers": "k:1"}


ISSUED = {
    "sasl.mechanism": "oauthbearer", "sasl.oauthbearer.client.id": "me", "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bootstrap.servers": ""}, "names no brokers"),
        ({"interceptor.classes": SECRET}, "interceptor.classes is not supported"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level is not supported"),
        ({"group.id": "a", "client.id": SECRET}, ": client.id is not supported"),
        ({"max.poll.records": SECRET}, "max.poll.records is not supported"),
        ({"sasl.jaas.config": SECRET}, "sasl.jaas.config is not supported"),
        ({"ssl.cafile": "/x"}, "ssl.cafile is not supported; supported: .*ssl.ca.location"),
        ({"security.protocol": SECRET}, "security.protocol is one of"),
        ({"security.protocol": "SSL"}, "sasl.mechanism would not be used"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "ssl.ca.location would not be used"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is one of PLAIN, SCRAM"),
        ({"sasl.password": ""}, "SASL needs a user and a password"),
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method must be oidc"),
        ({"sasl.oauthbearer.scope": SECRET}, "scope would not be used, because sasl.mechanism is SCRAM-SHA-512"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "sasl.username would not be used, because sasl.mechanism is AWS_MSK_IAM"),
        ({**ISSUED, "sasl.oauthbearer.client.secret": ""}, "SASL needs a user and a password: .*client.secret"),
        ({**ISSUED, "sasl.oauthbearer.token.endpoint.url": "file:///x"}, "an https URL of the issuer"),
        (ISSUED, "sasl.username would not be used, because sasl.mechanism is OAUTHBEARER"),
        ({"ssl.key.location": "/key"}, "belong together"),
        ({"ssl.endpoint.identification.algorithm": "none"}, "must be https"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_what_is_not_listed_or_does_not_fit_is_refused_by_name_and_no_value_is_shown(
    changes: dict[str, str], said: str
) -> None:
    """SEC-2: a property decides what is read, or where to."""
    with pytest.raises(ConfigurationError, match=f"^here.*{said}") as caught:
        broker_settings("here", {**SASL, "sasl.username": "me", "sasl.password": SECRET, **changes})
    assert SECRET not in str(caught.value)


def test_properties_of_consumer_groups_in_a_connection_of_others_are_ignored_and_named_once_per_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection such as `kafka_default` can be shared with other DAGs."""
    given = {"bootstrap.servers": "k:1", "group.id": SECRET, "auto.offset.reset": SECRET, "session.timeout.ms": "9"}

    for where in ("kafka_default", "kafka_default", "kafka_other"):
        assert broker_settings(where, given) == {"bootstrap.servers": "k:1"}

    assert [record.message.split(": ignored")[0] for record in caplog.records] == [
        f"{where}: group.id, auto.offset.reset, session.timeout.ms" for where in ("kafka_default", "kafka_other")
    ]
    assert SECRET not in caplog.text


def test_a_login_without_sasl_is_no_silent_plaintext() -> None:
    with pytest.raises(ConfigurationError, match="login would not be used, because security.protocol is PLAINTEXT"):
        broker_settings("here", {"bootstrap.servers": "k:1"}, login="me", password=SECRET)


def test_certificates_travel_in_place_of_the_names_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    given = {**SASL, "ssl.ca.location": str(tmp_path / "ca.pem")}
    settings = broker_settings("here", given, login="me", password=SECRET)

    travelling = travelling_settings(settings)

    del settings["ssl.ca.location"]
    assert travelling == {**settings, "ssl.ca.pem": "CA"}


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location: /nowhere/ca\.pem cannot be read"):
        travelling_settings(
            {"bootstrap.servers": "k:1", "security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
        )
