"""The oldest PostgreSQL that is supported, and what is said of one that is older; every other test runs on the newest."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.errors import LedgerError
from epochline.postgres.ledger.migrate import OLDEST_SERVER, refuse_an_older_server, upgrade
from epochline.postgres.ledger.transactions import CLIENT_CHECK_SECONDS, PostgresLedger
from epochline.postgres.queries import statements
from tests.databases import as_admin, query
from tests.integration.bench import KV, Bench
from tests.matrix.servers import postgres


@pytest.fixture(scope="module")
def oldest() -> Iterator[Callable[[], str]]:
    """Makes databases with a ledger on a server of the oldest version."""
    numbers = itertools.count(1)
    with postgres(str(OLDEST_SERVER)) as url:

        def new() -> str:
            name = f"oldest_{next(numbers)}"
            as_admin(f"{url}postgres", f"CREATE DATABASE {name}")
            upgrade(f"{url}{name}")
            return f"{url}{name}"

        yield new


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
