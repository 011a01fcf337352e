"""Passwords of PostgreSQL that expire: a command is asked for each session, and a certificate is checked by name."""

import json
import logging
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.airflow.connections import postgres_dsn as dsn_of_airflow
from epochline.airflow.reading import snapshot
from epochline.config.connections import Connection, libpq_url
from epochline.errors import LedgerUnavailableError
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.sources.growing_table import GrowingTable
from tests.commands import caller
from tests.databases import query
from tests.integration.expiring import Expiring
from tests.integration.in_process import over_records
from tests.integration.logins import Login, superuser
from tests.integration.pooler import installed, pooled
from tests.integration.secure_kafka import make_certificates

COLUMNS = {"id": "bigint"}
IDS = Pipeline(
    name="ids", source=KafkaSource(topics="ids"), parse=Json(columns=COLUMNS),
    sinks=[PostgresTable(table="ids", columns=COLUMNS)],
)  # fmt: skip
RECORDS = [b'{"id": %d}' % number for number in range(20)]


@pytest.fixture
def expiring(login: Login, stack: object, postgres_dsn: str, tmp_path: Path) -> Expiring:
    """An owner's login."""
    return Expiring(login("epochline_owner"), superuser(stack, postgres_dsn), tmp_path / "expiring")  # type: ignore[arg-type]


@pytest.mark.fault("F53")
def test_each_session_of_an_epoch_logs_in_with_a_password_of_its_own(
    expiring: Expiring, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F53, SEC-4: the password of the session before is refused by then, and no password is in a log."""
    caplog.set_level(logging.DEBUG)
    line = over_records(postgres_dsn, IDS, RECORDS)
    line.log_in(expiring.url)

    line.epoch()

    assert query(postgres_dsn, "SELECT count(*), count(DISTINCT id), min(id), max(id) FROM ids") == [(20, 20, 0, 19)]
    given = expiring.passwords
    assert len(given) == len(set(given)) > 6
    assert expiring.taken() == given[-1:]
    assert [password for password in given if password in caplog.text] == []


def test_commands_and_pages_ask_the_command_too(
    expiring: Expiring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """K21: from the connection that Airflow has, and in the form that a DAG's own task is given."""
    held = json.dumps({"conn_type": "postgres", **expiring.connection})
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", held)
    epochline = caller(monkeypatch, capsys)

    for command in (("sql", "SELECT 1"), ("ledger", "--json"), ("migrate",), ("doctor",)):
        before = len(expiring.passwords)
        _, out, err = epochline(*command)
        assert len(expiring.passwords) > before, out + err
        assert [password for password in expiring.passwords if password in out + err] == []
    with snapshot(expiring.url) as ledger:
        assert ledger.ask("ledger_revision").rows
    with closing(psycopg2.connect(dsn_of_airflow("epochline_postgres"))) as session:
        assert session.info.user == expiring.login


def test_a_growing_table_is_asked_with_a_password_of_the_moment(expiring: Expiring, postgres_dsn: str) -> None:
    """N2."""
    query(postgres_dsn, "CREATE TABLE grown (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text)")
    query(postgres_dsn, "INSERT INTO grown (said) VALUES ('one'), ('two')")
    query(postgres_dsn, f"GRANT ALL ON grown, grown_id_seq TO {expiring.login}")
    table = GrowingTable(Connection(where="test", **expiring.connection), table="grown", key="id")  # type: ignore[arg-type]

    for _ in range(2):
        assert [one.end for one in table.partitions()] == [3]
    assert len(expiring.passwords) > 1


@pytest.mark.skipif(installed() is None, reason="no PgBouncer on this machine (Debian: pgbouncer)")
def test_verify_full_takes_a_server_by_the_name_in_its_certificate_and_refuses_another_name(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """K21: the TLS is PgBouncer's, before a real PostgreSQL; the authority is the test's own."""
    of_server = tmp_path / "server"
    of_server.mkdir()
    certificates = make_certificates(of_server)
    tls = (
        "client_tls_sslmode = require", f"client_tls_key_file = {certificates.path('broker-key')}",
        f"client_tls_cert_file = {certificates.path('broker')}",
    )  # fmt: skip
    with pooled(postgres_dsn, of_server, *tls) as through:
        parts = parse_dsn(through)

        def url(host: str = "127.0.0.1", authority: str = "ca") -> str:
            extra = {"sslmode": "verify-full", "sslrootcert": certificates.path(authority)}
            return libpq_url(
                Connection(
                    where="test", host=host, port=int(parts["port"]), schema=parts["dbname"], login=parts["user"],
                    password=parts["password"], extra=extra,
                )
            )  # fmt: skip

        over_records(url(), IDS, RECORDS).epoch()
        for wrong, said in (
            (url("localhost"), 'does not match host name "localhost"'),
            (url(authority="other-ca"), "certificate verify failed"),
        ):
            with pytest.raises(LedgerUnavailableError, match=said), PostgresLedger(wrong).transaction():
                pass
    assert query(postgres_dsn, "SELECT count(*), count(DISTINCT id) FROM ids") == [(20, 20)]
