"""What is promised of the sink, on real servers: looked at from outside, before, while and after."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import psycopg2
import pyarrow as pa
import pytest
from psycopg2 import sql

from epochline import Json, KafkaSource, PostgresTable
from epochline.coordinator import abort
from epochline.errors import LockTimeoutError, SealRefusedError
from epochline.protocol.epoch import EpochState, Run
from tests.crash.checker import assert_chain, assert_exact
from tests.crash.conftest import NewLine
from tests.crash.line import Line, Through
from tests.databases import holding
from tests.integration.kafka_topics import group_offsets

OPERATOR = Run(dag_id="operator", run_id="test", host="here")


def fingerprint(line: Line) -> str:
    """The bytes of both targets, in the order in which they lie there."""
    found = [line.query(f"SELECT t.*, ctid FROM {sink.table} t ORDER BY ctid") for sink in line.pipeline.sinks]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def locked(line: Line, table: str) -> AbstractContextManager[Any]:
    """Somebody else holds a target, so that a commit gets no further."""
    return holding(line.dsn, sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.Identifier(table)))


def slowly(seconds: float) -> Through:
    """A pause before a part's first batch, while its consumer is open."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if not number:
                time.sleep(seconds)
            yield batch

    return through


def test_a_pending_epoch_is_shown_and_the_last_committed_one_stays_the_point_of_resumption(line: Line) -> None:
    """S8, S14, Q1."""
    assert line.run() == "success"
    before = line.heads()
    line.some(5, "second")

    line.to_sealed("second")

    states = line.query("SELECT epoch_id, state FROM epochline.epochs ORDER BY epoch_id")
    assert states == [(1, "COMMITTED"), (2, "PRE_COMMITTED")]
    assert line.heads() == before
    starts = dict(line.query("SELECT partition, start_offset FROM epochline.offsets WHERE epoch_id = 2"))
    assert starts == before


def test_nothing_but_a_commit_moves_the_consumer_group(line: Line) -> None:
    """S12, S5, Q1: what is confirmed to Kafka is what is committed (of Spark's consumers: test_spark_one_pass)."""
    planned, ticket = line.to_begun("first")
    # A client that commits by itself does so every two seconds (S12).
    line.stage(planned.ranges, ticket, slowly(2.5))
    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == {}
    line.seal(ticket, "first")
    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == {}

    line.commit(planned.epoch.epoch_id)

    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == line.heads()


def test_no_sink_shows_anything_before_all_of_them_can(line: Line) -> None:
    """C3, P6: the second table makes the commit wait, then fail; the first shows nothing until both do."""
    line.to_sealed("run")
    with locked(line, f"{line.name}_again"):
        with pytest.raises(LockTimeoutError):
            line.commit(1)
        assert line.query(f"SELECT count(*) FROM {line.name}") == [(0,)]
        assert line.state() is EpochState.PRE_COMMITTED

    line.commit(1)

    assert_exact(line)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM epochline.manifest WHERE sink LIKE '%%again'", "_again has no manifest"),
        (
            "INSERT INTO epochline.manifest (attempt_id, sink, write_id, parts, rows)"
            " SELECT attempt_id, 'stranger', write_id, 0, 0 FROM epochline.manifest LIMIT 1",
            "stranger has a manifest, but is no sink",
        ),
        (
            "INSERT INTO epochline.part (attempt_id, sink, write_id, spark_partition, rows)"
            " SELECT attempt_id, sink, gen_random_uuid(), 99, 0 FROM epochline.part LIMIT 1",
            "a sink was written under two write ids",
        ),
    ],
    ids=["one sink is not ready", "a sink that is none", "two writes"],
)
def test_an_epoch_is_not_sealed_before_every_sink_has_said_what_it_holds(line: Line, change: str, said: str) -> None:
    """C3, INV-9: not even where the job has written its end mark; the next attempt is whole."""
    _, ticket = line.to_staged("run")
    line.query(change)

    with pytest.raises(SealRefusedError, match=said):
        line.seal(ticket, "run")

    assert line.state() is EpochState.PLANNED
    assert line.run("run") == "success"
    assert_exact(line)


def test_a_failed_commit_fails_its_task_and_is_tried_again_until_it_succeeds(line: Line) -> None:
    """P6, X6, X7, Q2: twice refused, the third try commits; nothing was swallowed, staged rows survived."""
    line.to_sealed("run")
    for _ in range(2):
        with locked(line, line.name), pytest.raises(LockTimeoutError):
            line.commit(1)
        assert line.state() is EpochState.PRE_COMMITTED

    receipt = line.commit(1)

    assert receipt.epoch.state is EpochState.COMMITTED
    assert_exact(line)


@pytest.mark.parametrize("reached", ["planned", "begun", "staged", "sealed"])
def test_an_abort_at_any_time_before_the_commit_leaves_the_targets_as_they_were_byte_for_byte(
    line: Line, reached: str
) -> None:
    """P8, INV-7."""
    assert line.run() == "success"
    before = fingerprint(line)
    line.some(5, "second")
    getattr(line, f"to_{reached}")("second")

    abort(line.ledger, line.name, 2, OPERATOR, reason="a person decided", by_operator=True)

    assert fingerprint(line) == before
    assert line.run() == "success"
    assert_exact(line)


def test_a_target_that_forbids_a_second_row_of_a_record_is_never_given_one(line: Line) -> None:
    """P14: both ways against duplicates at once, staging and a unique key of topic, partition and offset."""
    line.query(f"CREATE UNIQUE INDEX ON {line.name} (_topic, _partition, _offset)")
    for number in range(3):
        line.some(4, f"more {number}")
        assert line.run() == "success"
    assert_exact(line)

    with pytest.raises(psycopg2.errors.UniqueViolation):
        line.query(f"INSERT INTO {line.name} SELECT * FROM {line.name} LIMIT 1")


def test_backpressure_is_a_limit_per_epoch_and_the_rest_waits_in_kafka(
    new_line: NewLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: 10,000 records under a limit of 1,000 make ten epochs whose ranges follow each other."""
    line = new_line(partitions=1, name="capped", source=KafkaSource(topics="capped", records_per_epoch=1000))
    line.produce({0: [f"record {i}" for i in range(10_000)]})
    monkeypatch.setattr(line, "read", partial(line.read, batch=500))

    outcomes = [line.run() for _ in range(11)]

    assert outcomes == ["success"] * 10 + ["skipped"]
    sizes = line.query("SELECT until_offset - start_offset FROM epochline.offsets ORDER BY epoch_id")
    assert sizes == [(1000,)] * 10
    assert_chain(line)
    assert_exact(line)


def test_five_visits_are_five_after_a_crash_in_the_middle_and_a_retry(new_line: NewLine) -> None:
    """G9: an `add` target, which a second delivery would raise."""
    counted = PostgresTable(
        table="visits_per_ip", mode="add", columns={"ip": "text", "visits": "bigint"}, key="ip", measures="visits"
    )
    line = new_line(name="visits", parse=Json(columns={"ip": "text", "visits": "bigint"}), sinks=[counted])
    line.produce({p: ['{"ip": "10.1.2.3", "visits": 1}'] * count for p, count in ((0, 3), (1, 2))})
    planned, ticket = line.to_begun("run")
    line.stage(planned.ranges, ticket)  # … and the process that staged is gone.

    assert line.run("run") == "success"
    assert line.run() == "skipped"

    assert line.query("SELECT ip, visits FROM visits_per_ip") == [("10.1.2.3", 5)]


def test_an_epoch_moves_as_a_whole_however_its_records_overtake_each_other(line: Line) -> None:
    """Q6: one partition's part is done while another hangs; no offset is confirmed, and both are read again."""
    planned, ticket = line.to_begun("run")
    last = planned.ranges[-1]
    line.writer(ticket).write(line.read(last))

    assert line.heads() == dict.fromkeys(line.heads(), 0)
    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == {}

    # The one that hung dies with its attempt.
    assert line.run("run") == "success"
    assert line.query("SELECT attempt FROM epochline.epochs") == [(2,)]
    assert_exact(line)


def test_staged_rows_outlive_any_pause_between_seal_and_commit(line: Line) -> None:
    """X3, X7: no transaction of Kafka or PostgreSQL is held open meanwhile that a time-out could end."""
    line.to_sealed("run")

    assert line.query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                      " AND xact_start < now() - interval '0.1 s' AND datname = current_database() AND pid <> pg_backend_pid()") == [(0,)]  # fmt: skip
    assert line.query("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    line.query("UPDATE epochline.epoch SET lease_until = lease_until - interval '1 day', planned_at = planned_at -"
               " interval '1 day', pre_committed_at = pre_committed_at - interval '1 day'")  # fmt: skip
    line.commit(1)

    assert_exact(line)


def test_two_runs_at_once_never_overlap_and_commit_in_the_order_of_their_ids(line: Line) -> None:
    """K5, K14: two at once are accepted and taken one after the other."""
    other = line.again()
    other.produced = line.produced
    outcomes: dict[str, Any] = {}

    def race(one: Line, who: str) -> None:
        outcomes[who] = one.run(who, tries=10)

    threads = [threading.Thread(target=race, args=args) for args in ((line, "one"), (other, "two"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert line.run("last") in ("success", "skipped")
    assert set(outcomes) == {"one", "two"}
    assert set(outcomes.values()) <= {"success", "skipped"}, outcomes
    assert "success" in outcomes.values()
    committed = line.query(
        "SELECT epoch_id FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY committed_at, epoch_id"
    )
    assert committed == sorted(committed)
    assert_exact(line)
