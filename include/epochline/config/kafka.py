"""Properties of a Kafka connection, by librdkafka's names. Others are refused: one can change what is read."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from epochline.errors import ConfigurationError

log = logging.getLogger(__name__)

SERVERS = "bootstrap.servers"
_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_USERNAME, _PASSWORD = "sasl.username", "sasl.password"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
_HOST_CHECK = "ssl.endpoint.identification.algorithm"

_IN_PYTHON = {
    SERVERS: "bootstrap_servers", _PROTOCOL: "security_protocol", _MECHANISM: "sasl_mechanism",
    _USERNAME: "sasl_plain_username", _PASSWORD: "sasl_plain_password", _CA: "ssl_cafile",
    _CERTIFICATE: "ssl_certfile", _KEY: "ssl_keyfile", _KEY_PASSWORD: "ssl_password",
}  # fmt: skip
_ALLOWED = (*_IN_PYTHON, _HOST_CHECK)
_OF_GROUPS = (
    "group.id", "group.instance.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms",
    "enable.auto.offset.store", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
    "partition.assignment.strategy",
)  # fmt: skip
"""Connections that other DAGs use have these for the members of a consumer group. Epochline joins none, and takes no
start from one, so that none of them can change what is read."""
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_INLINE = {_CA: "ssl.ca.pem", _CERTIFICATE: "ssl.certificate.pem", _KEY: "ssl.key.pem"}


def broker_settings(
    where: str,
    given: Mapping[str, str],
    *,
    host: str = "",
    port: int | None = None,
    login: str = "",
    password: str = "",
) -> dict[str, str]:
    """Check the Kafka properties of a connection; raises `ConfigurationError`, whose message shows no value.

    Properties of consumer groups are left out, and named in the log once per process and connection.
    ``host``, ``port``, ``login`` and ``password`` are taken where the properties name none.
    """
    settings = {key: value for key, value in given.items() if value}
    if unused := [name for name in _OF_GROUPS if settings.pop(name, None)]:
        _name_unused(where, ", ".join(unused))
    strangers = sorted(set(settings) - set(_ALLOWED))
    if strangers:
        raise ConfigurationError(f"{where}: {', '.join(strangers)} is not supported; supported: {', '.join(_ALLOWED)}.")
    if SERVERS not in settings and host:
        settings[SERVERS] = f"{host}:{port or 9092}"
    if SERVERS not in settings:
        raise ConfigurationError(f'{where} names no brokers: give {{"bootstrap.servers": "host:9092"}} as its extra.')
    protocol = settings.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigurationError(f"{where}: {_PROTOCOL} is one of {', '.join(_PROTOCOLS)}.")
    if _PROTOCOL in settings:
        settings[_PROTOCOL] = protocol
    if settings.pop(_HOST_CHECK, "https") != "https":
        raise ConfigurationError(
            f"{where}: {_HOST_CHECK} must be https: a broker's certificate is always checked against its host"
            " name. Put the name that clients use into the certificate."
        )
    if protocol.startswith("SASL"):
        _complete_sasl(where, settings, login, password)
    _check_fits(where, settings, protocol, login)
    return settings


@cache
def _name_unused(where: str, unused: str) -> None:
    """Say it once in a process."""
    log.warning(
        "%s: %s: ignored, because Epochline joins no consumer group; declaration and ledger decide.", where, unused
    )


def _complete_sasl(where: str, settings: dict[str, str], login: str, password: str) -> None:
    settings.setdefault(_USERNAME, login)
    settings.setdefault(_PASSWORD, password)
    mechanism = settings.get(_MECHANISM, "").upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(f"{where}: {_MECHANISM} is one of {', '.join(_MECHANISMS)}.")
    settings[_MECHANISM] = mechanism
    if not settings[_USERNAME] or not settings[_PASSWORD]:
        raise ConfigurationError(
            f"{where}: SASL needs a user and a password: the connection's login and password, or {_USERNAME} and"
            f" {_PASSWORD} in its extra."
        )


def _check_fits(where: str, settings: Mapping[str, str], protocol: str, login: str) -> None:
    sasl = [name for name in (_MECHANISM, _USERNAME, _PASSWORD) if name in settings] + ["login"] * bool(login)
    if sasl and not protocol.startswith("SASL"):
        raise ConfigurationError(
            f"{where}: {sasl[0]} would not be used, because {_PROTOCOL} is {protocol}; set SASL_SSL, or remove it."
        )
    tls = [name for name in (_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD) if name in settings]
    if tls and not protocol.endswith("SSL"):
        raise ConfigurationError(
            f"{where}: {tls[0]} would not be used, because {_PROTOCOL} is {protocol}; set SSL or SASL_SSL, or remove"
            " it."
        )
    if (_CERTIFICATE in settings) is not (_KEY in settings) or (_KEY_PASSWORD in settings and _KEY not in settings):
        raise ConfigurationError(f"{where}: {_CERTIFICATE} and {_KEY} belong together.")


def python_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Convert properties for kafka-python's clients."""
    return {_IN_PYTHON[name]: value for name, value in settings.items()}


def travelling_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Properties with certificates and keys in place of their files; raises `ConfigurationError`."""
    read = {_INLINE[name]: _pem(settings[name], name) for name in _INLINE if name in settings}
    return {name: value for name, value in settings.items() if name not in _INLINE} | read


def _pem(location: str, name: str) -> str:
    try:
        return Path(location).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not PEM"
        raise ConfigurationError(f"{name}: {location} cannot be read ({reason}).") from None
