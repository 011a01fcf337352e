"""Properties of a Kafka connection, by librdkafka's names. Others are refused: one can change what is read."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from epochline.errors import ConfigurationError

log = logging.getLogger(__name__)

SERVERS = "bootstrap.servers"
_PROTOCOL = "security.protocol"
_USERNAME, _PASSWORD = "sasl.username", "sasl.password"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
TOKENS, AWS_TOKENS = "OAUTHBEARER", "AWS_MSK_IAM"
"""Mechanisms that log in with tokens. The second one's come from AWS's signer: on the wire it is OAUTHBEARER too."""
MECHANISM = "sasl.mechanism"
CLIENT_ID, CLIENT_SECRET = "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"
ENDPOINT, SCOPE = "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope"
EXTENSIONS, ISSUER_CA = "sasl.oauthbearer.extensions", "https.ca.location"
OF_TOKENS = (CLIENT_ID, CLIENT_SECRET, ENDPOINT, SCOPE, EXTENSIONS, ISSUER_CA)
_OF_PASSWORDS = (MECHANISM, _USERNAME, _PASSWORD)
_TAKES: Mapping[str, tuple[str, ...]] = {TOKENS: (MECHANISM, *OF_TOKENS), AWS_TOKENS: (MECHANISM,)}
"""The properties of a login that a mechanism takes, if not a user and a password."""
_METHOD = "sasl.oauthbearer.method"

_IN_PYTHON = {
    SERVERS: "bootstrap_servers", _PROTOCOL: "security_protocol", MECHANISM: "sasl_mechanism",
    _USERNAME: "sasl_plain_username", _PASSWORD: "sasl_plain_password", _CA: "ssl_cafile",
    _CERTIFICATE: "ssl_certfile", _KEY: "ssl_keyfile", _KEY_PASSWORD: "ssl_password",
}  # fmt: skip
_ALLOWED = (*_IN_PYTHON, _HOST_CHECK, _METHOD, *OF_TOKENS)
_OF_GROUPS = (
    "group.id", "group.instance.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms",
    "enable.auto.offset.store", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
    "partition.assignment.strategy",
)  # fmt: skip
"""Connections that other DAGs use have these for the members of a consumer group. Epochline joins none, and takes no
start from one, so that none of them can change what is read."""
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", TOKENS, AWS_TOKENS)
_INLINE = {
    _CA: "ssl.ca.pem", _CERTIFICATE: "ssl.certificate.pem", _KEY: "ssl.key.pem", ISSUER_CA: "https.ca.pem",
}  # fmt: skip


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
    if settings.pop(_METHOD, "oidc") != "oidc":
        raise ConfigurationError(f"{where}: {_METHOD} must be oidc.")
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
    mechanism = settings[MECHANISM] = settings.get(MECHANISM, "").upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(f"{where}: {MECHANISM} is one of {', '.join(_MECHANISMS)}.")
    if mechanism == AWS_TOKENS:
        return
    user, secret = (CLIENT_ID, CLIENT_SECRET) if mechanism == TOKENS else (_USERNAME, _PASSWORD)
    settings.setdefault(user, login)
    settings.setdefault(secret, password)
    if not settings[user] or not settings[secret]:
        raise ConfigurationError(
            f"{where}: SASL needs a user and a password: the connection's login and password, or {user} and"
            f" {secret} in its extra."
        )
    if mechanism == TOKENS and not settings.get(ENDPOINT, "").startswith(("https://", "http://")):
        raise ConfigurationError(f"{where}: {TOKENS} needs {ENDPOINT}, an https URL of the issuer.")


def _check_fits(where: str, settings: Mapping[str, str], protocol: str, login: str) -> None:
    mechanism = settings.get(MECHANISM, "")
    takes, because = _TAKES.get(mechanism, _OF_PASSWORDS), f"{MECHANISM} is {mechanism}; remove it"
    if not protocol.startswith("SASL"):
        takes, because = (), f"{_PROTOCOL} is {protocol}; set SASL_SSL, or remove it"
    unused = [name for name in (*_OF_PASSWORDS, *OF_TOKENS) if name in settings and name not in takes]
    unused += ["login"] * bool(login and takes in ((), _TAKES[AWS_TOKENS]))
    if unused:
        raise ConfigurationError(f"{where}: {unused[0]} would not be used, because {because}.")
    tls = [name for name in (_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD) if name in settings]
    if tls and not protocol.endswith("SSL"):
        raise ConfigurationError(
            f"{where}: {tls[0]} would not be used, because {_PROTOCOL} is {protocol}; set SSL or SASL_SSL, or remove"
            " it."
        )
    if (_CERTIFICATE in settings) is not (_KEY in settings) or (_KEY_PASSWORD in settings and _KEY not in settings):
        raise ConfigurationError(f"{where}: {_CERTIFICATE} and {_KEY} belong together.")


def python_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert properties for kafka-python's clients. What `epochline.kafka.tokens` puts there has its name already."""
    return {_IN_PYTHON.get(name, name): value for name, value in settings.items()}


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
