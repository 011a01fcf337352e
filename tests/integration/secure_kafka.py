"""A broker that speaks SASL_SSL alone, with certificates of its own: what a user's cluster looks like."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from kafka.errors import KafkaError

from epochline.config.kafka import broker_settings, python_settings
from epochline.kafka.admin import EpochlineAdmin
from epochline.local import credentials
from epochline.local.home import LOOPBACK, Home, Ports, is_listening
from epochline.local.kafka import Kafka
from tests.ports import choose_ports

USER = "epochline"
PASSWORD = 'canary "Zq9d1fxW\\secret"; = #1'
"""With all that a JAAS configuration or a properties file could trip over."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_ADMIN_PASSWORD = "of the broker itself"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority's certificate, and each one's certificate and key."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")


def with_tokens(keys: str, audience: str) -> dict[str, str]:
    """Settings of a broker that takes an issuer's tokens too, and ends the session of a token that has expired."""
    return {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "listener.name.broker.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        "listener.name.broker.oauthbearer.sasl.server.callback.handler.class": (
            f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.broker.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.audience": audience,
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }


def make_certificates(folder: Path) -> Certificates:
    key, stranger = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    _write(folder / "ca.pem", _certificate("authority", key, key, is_authority=True))
    _write(folder / "other-ca.pem", _certificate("authority", stranger, stranger, is_authority=True))
    for name in ("broker", "client"):
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, own, key)
        pem = own.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(folder / f"{name}.pem", certificate)
        _write(folder / f"{name}-key.pem", pem)
        _write(folder / f"{name}-both.pem", pem + certificate)
    return Certificates(folder)


def _certificate(subject: str, key: Key, issuer_key: Key, *, is_authority: bool = False) -> bytes:
    """A certificate of a key, signed by an authority's key, as PEM."""
    now = datetime.now(UTC)
    names = [x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


class SecureKafka:
    """One broker in a home of its own; every client needs a certificate, a user and a password."""

    def __init__(self, home: Path, more: Mapping[str, str] | None = None) -> None:
        self._home = Home(home)
        self._home.create()
        credentials.ensure(self._home)
        choose_ports(self._home)
        ports = Ports(self._home)
        folder = home / "certificates"
        folder.mkdir(mode=0o700)
        self.certificates = make_certificates(folder)
        self._kafka = Kafka(self._home, ports, {**self._settings(), **(more or {})})
        self.servers = self._kafka.bootstrap_servers

    def start(self) -> None:
        self._kafka.start()
        self._kafka.daemon.wait_ready(self._missing, 120)

    def stop(self) -> None:
        self._kafka.stop()
        self._home.wipe()

    def connection(self, **changes: str) -> dict[str, str]:
        """The extra of a connection to it, but for the password, which is the connection's own."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "ssl.ca.location": self.certificates.path("ca"),
            "ssl.certificate.location": self.certificates.path("client"),
            "ssl.key.location": self.certificates.path("client-key"),
            **changes,
        }

    def admin(self) -> EpochlineAdmin:
        settings = broker_settings("test", self.connection(), login=USER, password=PASSWORD)
        return EpochlineAdmin(**python_settings(settings), request_timeout_ms=5000, bootstrap_timeout_ms=5000)

    def log(self) -> str:
        return self._kafka.daemon.log.read_text(errors="replace")

    def _missing(self) -> str | None:
        if not is_listening(self._kafka.port):
            return "nothing listens"
        try:
            admin = self.admin()
            admin.create_topics({"probe": {"num_partitions": 1, "replication_factor": 1}}, validate_only=True)
            admin.close()
        except (KafkaError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _settings(self) -> Mapping[str, str]:
        def login(user: str, password: str) -> str:
            user, password = (text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password))
            return f'{_PLAIN} required username="{user}" password="{password}"'

        quoted = login("", PASSWORD).partition("password=")[2]
        plain = f'{login("admin", _ADMIN_PASSWORD)} user_admin="{_ADMIN_PASSWORD}" user_{USER}={quoted};'
        return {
            "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.broker.plain.sasl.jaas.config": plain,
            "listener.name.broker.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates.path("broker-both"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.path("ca"),
            # Kafka ignores it for a SASL listener, unless that is named.
            "listener.name.broker.ssl.client.auth": "required",
        }
