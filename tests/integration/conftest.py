"""Servers that some integration tests need in addition to the session's, and fixtures that several tests use."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.commands import Call, caller, connect_to
from tests.contract.worlds import World, postgres_world
from tests.integration.auditing import Audit, NewAudited, new_audited, said_of_sinks
from tests.integration.bench import bench
from tests.integration.issuer import AUDIENCE, Issuer, issuing
from tests.integration.kafka_topics import Topic
from tests.integration.logins import as_superuser, login, reader
from tests.integration.machine_world import machine_servers
from tests.integration.people import Patch, call, fed, people_topic, planned
from tests.integration.secure_kafka import SecureKafka, with_tokens
from tests.integration.spark_session import event_log, spark
from tests.integration.stores import S3, Hdfs, Store, started

__all__ = [
    "as_superuser", "bench", "call", "event_log", "fed", "login", "machine_servers", "people_topic", "planned", "reader", "spark",
]  # fmt: skip


@pytest.fixture(scope="module")
def dsn(new_database: Callable[[], str]) -> str:
    """The libpq URL of a database that the tests of a file share."""
    return new_database()


@pytest.fixture
def world(postgres_dsn: str) -> World:
    """A pipeline in the test's own ledger."""
    return postgres_world(postgres_dsn)


@pytest.fixture
def on_ledger(postgres_dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: Patch) -> Call:
    """Calls commands, which find the test's own ledger."""
    connect_to(monkeypatch, postgres=postgres_dsn)
    return caller(monkeypatch, capsys)


@pytest.fixture
def on_servers(
    postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> Call:
    """Calls commands, which find the test's own ledger, the broker, and declarations in the test's own folder."""
    connect_to(monkeypatch, postgres=postgres_dsn, kafka=kafka_bootstrap)
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    return caller(monkeypatch, capsys)


@pytest.fixture
def audited(on_servers: Call, postgres_dsn: str, kafka_bootstrap: str, topic_name: str) -> NewAudited:
    """Makes a pipeline into these targets, which the command audits."""
    return partial(new_audited, on_servers, postgres_dsn, kafka_bootstrap, topic_name)


@pytest.fixture
def audit(on_servers: Call) -> Audit:
    """Audits a world of sinks; gives exit code, differences and notes."""
    return partial(said_of_sinks, on_servers)


@pytest.fixture
def topic(kafka_bootstrap: str, topic_name: str) -> Topic:
    """A topic of two partitions."""
    return Topic(kafka_bootstrap, topic_name).make(2)


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[SecureKafka]:
    """A broker with TLS, client certificates and SASL."""
    broker = SecureKafka(Path(tempfile.mkdtemp(prefix="epochline-secure-")))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    """Gives tokens that live six seconds."""
    with issuing(tmp_path_factory.mktemp("issuer"), 6) as one:
        yield one


@pytest.fixture(scope="session")
def token_kafka(issuer: Issuer) -> Iterator[SecureKafka]:
    """A broker with TLS and client certificates that takes the issuer's tokens."""
    home, options = Path(tempfile.mkdtemp(prefix="epochline-tokens-")), "JAVA_TOOL_OPTIONS"
    broker = SecureKafka(home, with_tokens(issuer.keys, AUDIENCE))
    try:
        with pytest.MonkeyPatch.context() as patched:
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.keys}"
            patched.setenv(options, f"{os.environ.get(options, '')} {allowed}")
            broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """HDFS of one NameNode and one DataNode."""
    store = Hdfs(tmp_path_factory.mktemp("hdfs"))
    store.format()
    with started(store):
        yield store


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An S3 server with conditional PUT."""
    with started(S3(tmp_path_factory.mktemp("s3"))) as store:
        yield store
