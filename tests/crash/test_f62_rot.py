"""Bytes that rot: a staged row, a file, a manifest, a count of the ledger. Found before they show, or by the next audit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg2 import sql

from epochline import Files, Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import EpochlineError, SinkError, StagingLostError
from epochline.local.stack import Stack
from epochline.protocol.epoch import EpochState
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.databases import query
from tests.driver import epoch_of
from tests.integration.in_process import InProcess, over_records
from tests.integration.logins import superuser

COLUMNS = {
    "n": "integer", "name": "text", "price": "numeric", "ratio": "double precision", "seen": "timestamptz", "doc": "jsonb",
    "raw": "bytea", "tags": "text[]", "cents": "numeric(12,2)", "flag": "boolean",
}  # fmt: skip
PAST_TRIGGERS = "SET session_replication_role = replica; "


def record(n: int) -> dict[str, Any]:
    return {
        "n": n, "name": f"straße {n}", "price": "1.50", "ratio": 0.0, "seen": "2026-01-01T00:00:00Z", "doc": {"a": 1.0},
        "raw": "AAEC", "tags": ["a", None], "cents": "7.10", "flag": True,
    }  # fmt: skip


def pipeline(name: str, *sinks: Any, **declared: Any) -> Pipeline:
    return Pipeline(
        name=name, source=KafkaSource(topics="records"), parse=Json(columns=COLUMNS), bad_records="quarantine",
        sinks=sinks or (PostgresTable(table="t", columns=COLUMNS),), **declared,
    )  # fmt: skip


def staging_of(line: InProcess, sink: str = "t") -> str:
    """The newest staging table of a sink."""
    newest = "SELECT table_name FROM epochline.staging WHERE sink = %s AND dropped_at IS NULL ORDER BY attempt_id DESC"
    return str(line.sql(f"{newest} LIMIT 1", sink)[0][0])


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


CHANGES = {
    "n": "n = n + 65536", "name": "name = 'strasse 0'", "price": "price = 1.500", "ratio": "ratio = '-0'",
    "seen": "seen = seen + interval '1 microsecond'", "doc": """doc = '{"a": 1.00}'""", "raw": r"raw = '\x000103'",
    "tags": "tags = '{a,NULL,NULL}'", "cents": "cents = NULL", "flag": "flag = false", "_offset": "_offset = 7",
}  # fmt: skip
"""Each gives a value that differs, though PostgreSQL may call it equal to the old one."""


@pytest.mark.fault("F62")
def test_a_staged_row_that_changes_after_the_seal_is_found_by_the_commit_and_its_range_is_read_again(
    postgres_dsn: str, stack: Stack, recovery: Recovery
) -> None:
    """INV-6, INV-9: whatever the column; nothing of the epoch is visible, and the next attempt is right."""
    records = [record(n) for n in range(3)]
    line = over_records(postgres_dsn, pipeline("rot"), records)
    planned, run, _ = line.sealed()
    for column, change in CHANGES.items():
        table = f'epochline_staging."{staging_of(line)}"'
        statement = f"{PAST_TRIGGERS}UPDATE {table} SET {change} WHERE _offset = 0 RETURNING 1"
        assert query(superuser(stack, postgres_dsn), statement) == [(1,)]

        with pytest.raises(StagingLostError, match=r"3 rows were sealed for t, but its staging table holds other values"):
            line.commit(planned)

        assert line.sql("SELECT state FROM epochline.epochs") == [("ABORTED",)], column
        assert line.sql("SELECT count(*) FROM t") == [(0,)]
        planned = line.plan(run)
        line.staged_and_sealed(planned, run)
    line.commit(planned)
    recovery.took()
    assert line.sql("SELECT n, name, price::text, ratio::text, flag FROM t ORDER BY n") == [
        (n, f"straße {n}", "1.50", "0", True) for n in range(3)
    ]


@pytest.mark.fault("F62")
def test_a_quarantined_record_that_changes_after_the_seal_is_found_too(postgres_dsn: str, recovery: Recovery) -> None:
    """INV-9: it would be requeued as another record."""
    line = over_records(postgres_dsn, pipeline("rot"), [record(0), b"no JSON"])
    planned, run, _ = line.sealed()
    line.sql(f"""UPDATE epochline_staging."{staging_of(line, '_quarantine')}" SET value = 'no JSOM' RETURNING 1""")

    with pytest.raises(StagingLostError, match="_quarantine, but its staging table holds other values"):
        line.commit(planned)

    planned = line.plan(run)
    line.staged_and_sealed(planned, run)
    line.commit(planned)
    recovery.took()
    assert line.sql("SELECT convert_from(value, 'UTF8') FROM epochline.quarantine") == [("no JSON",)]


@pytest.fixture
def without_checksums(server: Server) -> Iterator[Callable[[str, bytes], None]]:
    """Flips a bit of a table's file, on a server whose pages have no checksums as before PostgreSQL 18."""
    server.postgres.stop()
    server._run("pg_checksums", "--disable")
    server.start()

    def flip(dsn: str, table: str, value: bytes) -> None:
        [(path,)] = query(dsn, "SELECT pg_relation_filepath(%s::regclass)", table)
        server.admin("CHECKPOINT")
        server.postgres.stop()
        file = server.postgres.data / path
        data = file.read_bytes()
        assert data.count(value) == 1
        file.write_bytes(flipped(data, data.index(value)))
        server.start()

    yield flip
    server.postgres.stop()
    server._run("pg_checksums", "--enable")
    server.start()


@pytest.mark.fault("F62")
@pytest.mark.slow
def test_a_bit_that_flips_on_the_disk_under_a_staged_row_is_found_by_the_commit(
    server: Server, without_checksums: Callable[..., None], recovery: Recovery
) -> None:
    """INV-6, INV-9: PostgreSQL itself finds it where its pages have checksums."""
    line = over_records(server.new_database(), pipeline("rot"), [record(n) for n in range(3)])
    planned, run, _ = line.sealed()
    without_checksums(line.dsn, f'epochline_staging."{staging_of(line)}"', "straße 1".encode())
    table = f'epochline_staging."{staging_of(line)}"'
    assert line.sql(f"SELECT count(*) FROM {table} WHERE name = 'rtraße 1'") == [(1,)]
    recovery.last_fault()

    with pytest.raises(StagingLostError, match="its staging table holds other values"):
        line.commit(planned)

    planned = line.plan(run)
    line.staged_and_sealed(planned, run)
    line.commit(planned)
    recovery.took()
    assert line.sql("SELECT name FROM t ORDER BY n") == [(f"straße {n}",) for n in range(3)]
