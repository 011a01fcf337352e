"""The oldest PostgreSQL that is supported, and what is said of one that is older; every other test runs on the newest."""

import itertools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from epochline import PostgresTable
from epochline.errors import LedgerError
from epochline.local.postgres import binaries, server_account
from epochline.postgres.ledger.migrate import OLDEST_SERVER, refuse_an_older_server, upgrade
from epochline.postgres.ledger.transactions import CLIENT_CHECK_SECONDS, PostgresLedger
from epochline.postgres.queries import statements
from tests.databases import as_admin, query
from tests.integration.bench import KV, Bench
from tests.ports import free_port
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def oldest() -> Iterator[Callable[[], str]]:
    """Makes databases with a ledger on a server of the oldest version, whose binaries are installed next to the newest ones."""
    programs = binaries().parents[1] / "pginstall" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="epochline-oldest-"))
    data, port = folder / "data", free_port()
    account = server_account(data, [programs / "postgres", folder])
    account.own(folder)
    made = ["-D", str(data), "-U", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
    run = partial(subprocess.Popen[bytes], cwd="/", stdout=subprocess.DEVNULL)
    assert run([*account.prefix, str(programs / "initdb"), *made]).wait() == 0
    settings = ["-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", "", "-c", "fsync=off"]
    server = run([*account.prefix, str(programs / "postgres"), *settings])
    at, numbers = f"postgresql://postgres@127.0.0.1:{port}/", itertools.count(1)

    def answers() -> bool:
        with suppress(psycopg2.OperationalError):
            psycopg2.connect(f"{at}postgres").close()
            return True
        return False

    def new() -> str:
        name = f"oldest_{next(numbers)}"
        as_admin(f"{at}postgres", f"CREATE DATABASE {name}")
        upgrade(f"{at}{name}")
        return f"{at}{name}"

    try:
        wait_for("PostgreSQL answers", answers)
        yield new
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.server
@pytest.mark.parametrize(
    "sink",
    [{}, {"mode": "upsert", "key": "k"}, {"mode": "add", "key": "k", "measures": ("v",)}, {"mode": "replace"}],
    ids=lambda sink: sink.get("mode", "append"),
)
def test_epochs_of_every_mode_commit_on_the_oldest_server(oldest: Callable[[], str], sink: dict[str, Any]) -> None:
    one = Bench(oldest(), PostgresTable(table="t", columns=KV, **sink), KV)
    [(version,)] = one.sql("SHOW server_version_num")
    assert int(version) // 10_000 == OLDEST_SERVER

    one.epoch({"k": "a", "v": 1}, {"k": "b", "v": 2})
    one.epoch({"k": "c", "v": 3})

    expected = [("c", 3)] if sink.get("mode") == "replace" else [("a", 1), ("b", 2), ("c", 3)]
    assert one.rows() == expected
    assert one.sql("SELECT state FROM epochline.epochs ORDER BY epoch_id") == [("COMMITTED",), ("COMMITTED",)]


@pytest.mark.parametrize("version", [150013, 140000, 90624])
def test_an_older_server_is_refused_before_anything_is_made(version: int) -> None:
    with pytest.raises(LedgerError, match=f"PostgreSQL {version // 10_000}.* needs {OLDEST_SERVER} or newer"):
        refuse_an_older_server(version)


def test_a_session_of_the_ledger_has_the_server_look_for_its_client(postgres_dsn: str) -> None:
    """Also where the server's own setting is off, as it is by default."""
    switched_off = "SELECT format('ALTER DATABASE %I SET client_connection_check_interval = 0', current_database())"
    [(statement,)] = query(postgres_dsn, switched_off)
    query(postgres_dsn, statement)

    with PostgresLedger(postgres_dsn).connection() as connection:
        [(asked,)] = statements.query(connection, "SHOW client_connection_check_interval")

    assert asked == f"{CLIENT_CHECK_SECONDS}s"
