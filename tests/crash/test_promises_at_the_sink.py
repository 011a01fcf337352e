"""What is promised of the sink, on real servers: looked at from outside, before, while and after."""

import hashlib
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from epochline import Json, PostgresTable
from epochline.coordinator import abort
from epochline.errors import SealRefusedError
from epochline.protocol.epoch import CommitOutcome, EpochState
from tests.checker import assert_exact
from tests.crash.conftest import NewLine
from tests.crash.line import Line, in_background
from tests.databases import holding
from tests.integration.kafka_topics import group_offsets


def fingerprint(line: Line) -> str:
    found = [line.query(f"SELECT t.*, ctid FROM {sink.table} t ORDER BY ctid") for sink in line.pipeline.tables]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A pause after a part's first batch, while its consumer is open."""
    yield next(batches)
    # A client that commits by itself does so every two seconds (S12).
    time.sleep(2.5)
    yield from batches


def test_nothing_but_a_commit_moves_the_heads_and_the_consumer_group(line: Line) -> None:
    """S3, S5, S8, S12, S14, X26, Q1: the last committed epoch stays the point of resumption, in the ledger and for Kafka.

    What Spark's consumers confirm: test_spark_one_pass.
    """

    def assert_confirmed(heads: dict[int, int]) -> None:
        assert line.heads() == heads
        assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == heads

    assert line.run() == "success"
    before = line.heads()
    line.some(5, "second")

    planned, ticket = line.to_begun("second")
    line.stage_parts((slowly(line.read(one)) for one in planned.ranges), ticket)
    assert_confirmed(before)
    line.seal(ticket, "second")
    assert_confirmed(before)

    states = line.query("SELECT epoch_id, state FROM epochline.epochs ORDER BY epoch_id")
    assert states == [(1, "COMMITTED"), (2, "PRE_COMMITTED")]
    starts = dict(line.query("SELECT partition, start_offset FROM epochline.offsets WHERE epoch_id = 2"))
    assert starts == before
    line.commit(2)
    assert_confirmed({partition: max(o for p, o in line.produced if p == partition) + 1 for partition in before})


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
    ids=["one sink is not ready", "not a sink", "two writes"],
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


def test_a_commit_whose_mirror_finds_the_pipeline_locked_still_says_that_it_committed(sealed: Line) -> None:
    """S15, INV-5: another session plans for longer than the lock time-out; the next commit sets the group right."""
    line = sealed.again(lock_timeout=0.5)

    with holding(line.dsn, "SELECT 1 FROM epochline.pipeline FOR NO KEY UPDATE"):
        receipt = line.commit(1)

    assert receipt.outcome is CommitOutcome.COMMITTED
    assert line.state() is EpochState.COMMITTED
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

    abort(line.ledger, line.name, 2, line.run_of("operator"), reason="a person decided", by_operator=True)

    assert fingerprint(line) == before
    assert line.run() == "success"
    assert_exact(line)


def test_five_visits_are_five_after_a_crash_in_the_middle_and_a_retry(new_line: NewLine) -> None:
    """G9: an `add` target, which a second delivery would raise."""
    columns = {"ip": "text", "visits": "bigint"}
    counted = PostgresTable(table="visits_per_ip", mode="add", columns=columns, key="ip", measures="visits")
    line = new_line(name="visits", parse=Json(columns=columns), sinks=[counted])
    line.produce({p: ['{"ip": "10.1.2.3", "visits": 1}'] * count for p, count in ((0, 3), (1, 2))})
    line.to_staged("run")  # … and the process that staged is gone.

    assert line.run("run") == "success"
    assert line.run() == "skipped"

    assert line.query("SELECT ip, visits FROM visits_per_ip") == [("10.1.2.3", 5)]


def test_an_epoch_moves_as_a_whole_however_its_records_overtake_each_other(line: Line) -> None:
    """Q6: one partition's part is done while another hangs; no offset is confirmed, and both are read again."""
    planned, ticket = line.to_begun("run")
    line.writer(ticket).write(line.read(planned.ranges[-1]))

    assert line.heads() == dict.fromkeys(line.heads(), 0)
    assert group_offsets(line.bootstrap, line.pipeline.consumer_group) == {}

    # The one that hung dies with its attempt.
    assert line.run("run") == "success"
    assert line.query("SELECT attempt FROM epochline.epochs") == [(2,)]
    assert_exact(line)


def test_staged_rows_outlive_any_pause_between_seal_and_commit(sealed: Line) -> None:
    """X3, X7: no transaction of Kafka or PostgreSQL is held open meanwhile that a time-out could end."""
    in_transaction = (
        "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()"
        " AND xact_start < now() - interval '0.1 s' AND pid <> pg_backend_pid()"
    )
    assert sealed.query(in_transaction) == []
    assert sealed.query("SELECT gid FROM pg_prepared_xacts") == []
    a_day_ago = (
        f"{column} = {column} - interval '1 day'" for column in ("lease_until", "planned_at", "pre_committed_at")
    )
    sealed.query(f"UPDATE epochline.epoch SET {', '.join(a_day_ago)}")
    sealed.commit(1)

    assert_exact(sealed)


def test_two_runs_at_once_never_overlap_and_commit_in_the_order_of_their_ids(line: Line) -> None:
    """K5, K14: two at once are accepted and taken one after the other."""
    other = line.again()
    both = in_background(lambda: line.run("one", tries=10)), in_background(lambda: other.run("two", tries=10))

    outcomes = [one.result(120) for one in both]

    assert line.run("last") in ("success", "skipped")
    assert {"success"} <= set(outcomes) <= {"success", "skipped"}, outcomes
    committed = line.query(
        "SELECT epoch_id FROM epochline.epochs WHERE state = 'COMMITTED' ORDER BY committed_at, epoch_id"
    )
    assert committed == sorted(committed)
    assert_exact(line)
