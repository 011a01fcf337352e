"""The disk is full: under staging, under the target, under the write-ahead log.

A limit on the size of files stands in for the disk: one of a segment of the write-ahead log lets the log grow and
stops a table; a smaller one stops the log. PostgreSQL then says "File too large" where a full disk gives
SQLSTATE 53100, which `test_f17_f18_locks_and_errors` has among the errors that are tried again.
"""

import base64
import random
import time

import psycopg2
import pytest

from epochline.errors import LedgerError
from epochline.protocol.epoch import EpochState
from tests.checker import recover
from tests.crash.line import Line
from tests.crash.servers import WAL_SEGMENT, Server


def large(line: Line) -> None:
    """Rows of some megabytes that PostgreSQL cannot compress away."""
    chance = random.Random(4)
    line.produce({p: [base64.b64encode(chance.randbytes(45_000)) for _ in range(40)] for p in (0, 1)})


@pytest.mark.fault("F16")
def test_a_full_disk_under_staging_fails_the_attempt_and_a_later_one_heals(line: Line, server: Server) -> None:
    """I6, I7: the error says what happened and that a retry helps; no row stays."""
    large(line)
    planned = line.to_planned("run-1")
    with server.file_size_limit(WAL_SEGMENT):
        with pytest.raises(psycopg2.Error, match="File too large"):
            line.pre_commit(planned, "run-1")
        since = time.monotonic()

    assert line.query(f"SELECT count(*) FROM {line.name}") == [(0,)]
    assert line.run("run-1") == "success"
    recover(line, since=since)


@pytest.mark.fault("F16")
def test_a_full_disk_under_the_target_keeps_the_sealed_epoch_for_a_later_commit(line: Line, server: Server) -> None:
    """INV-2, INV-6: neither target nor ledger moved."""
    large(line)
    line.to_sealed("run-1")
    with server.file_size_limit(WAL_SEGMENT):
        with pytest.raises(LedgerError, match="File too large"):
            line.commit(1)
        since = time.monotonic()

    assert line.query(f"SELECT count(*) FROM {line.name}") == [(0,)]
    assert line.heads() == {0: 0, 1: 0}
    assert line.state() is EpochState.PRE_COMMITTED
    recover(line, since=since)
    assert line.query("SELECT attempt FROM epochline.epochs") == [(1,)]


def fill_the_log(line: Line) -> None:
    for _ in range(200):
        line.query("SELECT pg_switch_wal()")
        line.query("CREATE TABLE public.w AS SELECT 1; DROP TABLE public.w")


@pytest.mark.fault("F16")
@pytest.mark.slow
def test_a_full_disk_under_the_write_ahead_log_stops_the_server_and_costs_nothing(line: Line, server: Server) -> None:
    """PostgreSQL gives up when it cannot make its next segment; after space was made and it was started, all goes on."""
    line.to_planned("run-1")
    with server.file_size_limit(WAL_SEGMENT // 4):
        with pytest.raises(psycopg2.Error):
            fill_the_log(line)
        assert line.run("run-2", tries=1) == "failed"
    since = time.monotonic()
    server.postgres.stop()
    server.start()

    assert line.run("run-1") == "success"
    recover(line, since=since)
