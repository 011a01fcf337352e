"""The properties of a Kafka connection: what is taken, what is refused by name, what each client is given (SEC-2)."""

from pathlib import Path

import pytest

from epochline.config.kafka import broker_settings, python_settings, travelling_settings
from epochline.errors import ConfigurationError

SECRET = "canary-5e77"
SASL = {
    "bootstrap.servers": "k:9093",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "scram-sha-512",
    "ssl.ca.location": "/etc/ca.pem",
}


def test_login_and_password_of_the_connection_are_those_of_sasl() -> None:
    assert python_settings(broker_settings("here", SASL, login="me", password=SECRET)) == {
        "bootstrap_servers": "k:9093",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": SECRET,
        "ssl_cafile": "/etc/ca.pem",
    }


def test_a_host_stands_for_the_brokers_where_none_are_named() -> None:
    assert broker_settings("here", {}, host="k") == {"bootstrap.servers": "k:9092"}
    assert broker_settings("here", {}, host="k", port=1) == {"bootstrap.servers": "k:1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bootstrap.servers": ""}, "names no brokers"),
        ({"interceptor.classes": SECRET}, "interceptor.classes is not supported"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level is not supported"),
        ({"group.id": SECRET}, "group.id is not supported"),
        ({"sasl.jaas.config": SECRET}, "sasl.jaas.config is not supported"),
        ({"ssl.cafile": "/x"}, "ssl.cafile is not supported; supported: .*ssl.ca.location"),
        ({"security.protocol": SECRET}, "security.protocol is one of"),
        ({"security.protocol": "SSL"}, "sasl.mechanism would not be used"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "ssl.ca.location would not be used"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is one of PLAIN, SCRAM"),
        ({"sasl.password": ""}, "SASL needs a user and a password"),
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
