"""The seconds of an epoch's phases, as the ledger's view gives them (G7)."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.commands import Call
from tests.contract.worlds import NEWEST, OLDEST, World
from tests.databases import query

PHASES = ("start", "stage", "seal", "commit", "publish")


def seconds(dsn: str, names: Sequence[str] = PHASES) -> list[float | None]:
    (found,) = query(dsn, f"SELECT {', '.join(f'{name}_seconds' for name in names)} FROM epochline.phases")
    return list(found)


def test_each_phase_lasts_from_one_moment_of_the_ledger_to_the_next(world: World, postgres_dsn: str) -> None:
    world.to_committed("run-1", record_limit=4)

    (moments,) = query(
        postgres_dsn,
        "SELECT e.planned_at, a.started_at, a.job_ended_at, a.sealed_at, e.committed_at,"
        " greatest(max(r.shown_at), e.committed_at)"
        " FROM epochline.epoch e JOIN epochline.attempt a USING (pipeline, epoch_id)"
        " JOIN epochline.receipt r USING (pipeline, epoch_id) GROUP BY 1, 2, 3, 4, 5",
    )
    expected = [(until - since).total_seconds() for since, until in pairwise(moments)]
    assert min(expected) >= 0, "a table shows an epoch before it is committed"
    assert seconds(postgres_dsn) == pytest.approx(expected)
    assert seconds(postgres_dsn, ["whole", "wait"]) == [pytest.approx(sum(expected)), None]


LATENCIES = "SELECT longest_latency_seconds, shortest_latency_seconds FROM epochline.phases"


def test_an_epoch_says_how_old_its_records_were_at_its_commit(world: World, postgres_dsn: str) -> None:
    """G7: by Kafka's timestamps, which the parts' messages carry and the seal stores."""
    world.to_sealed("run-1", record_limit=4)
    assert query(postgres_dsn, LATENCIES) == [(None, None)]

    world.commit(1)

    ((committed_at,),) = query(postgres_dsn, "SELECT committed_at FROM epochline.epoch")
    expected = tuple((committed_at - timestamp).total_seconds() for timestamp in (OLDEST, NEWEST))
    assert query(postgres_dsn, LATENCIES) == [pytest.approx(expected)]
    ranges = "SELECT DISTINCT oldest_timestamp, newest_timestamp FROM epochline.offsets"
    assert query(postgres_dsn, ranges) == [(OLDEST, NEWEST)]


@pytest.mark.parametrize(
    ("oldest", "newest", "shown"),
    [(3600, 5.04, "1 h of the oldest record, 5 s of the newest"), (-2, -7, "-2 s of the oldest record, -7 s of")],
    ids=["behind", "a producer's clock that is ahead"],
)
def test_the_command_line_shows_how_old_an_epochs_records_were(
    world: World, postgres_dsn: str, oldest: float, newest: float, shown: str, on_ledger: Call
) -> None:
    """G7."""
    world.to_committed("run-1", record_limit=4)
    query(
        postgres_dsn,
        "UPDATE epochline.planned_range r SET oldest_timestamp = e.committed_at - make_interval(secs => %s),"
        " newest_timestamp = e.committed_at - make_interval(secs => %s) FROM epochline.epoch e", oldest, newest,
    )  # fmt: skip

    out = on_ledger.shown("ledger", "orders", "--epoch", 1)

    assert f"age at the commit, by Kafka's timestamps: {shown}" in out
    assert on_ledger.json("ledger", "orders")[0]["longest_latency_seconds"] == pytest.approx(oldest)


def test_an_epoch_of_an_interval_waited_from_its_end(world: World, postgres_dsn: str) -> None:
    world.to_committed("run-1", record_limit=4)
    query(
        postgres_dsn,
        "UPDATE epochline.epoch SET interval_start = planned_at - interval '2 h', interval_end = planned_at - interval '1 h'",
    )

    waited, planned = seconds(postgres_dsn, ["wait", "plan"])
    assert waited is not None
    assert planned is not None
    assert 0 < planned < 60
    assert waited + planned == pytest.approx(3600)


def test_an_epoch_that_is_not_shown_has_no_time_of_what_is_to_come(world: World, postgres_dsn: str) -> None:
    world.to_sealed("run-1", record_limit=4)

    found = seconds(postgres_dsn)

    assert None not in found[:3]
    assert found[3:] == [None, None]


@pytest.mark.parametrize(("interval", "kept"), [("3600", True), ("0", False), ('"@daily"', None), ("null", None)])
def test_an_epoch_says_whether_the_interval_of_its_schedule_was_kept(
    world: World, postgres_dsn: str, interval: str, kept: bool | None
) -> None:
    """K8."""
    world.to_committed("run-1", record_limit=4)
    settings = f'{{"interval": {{"value": {interval}, "from": "declaration"}}}}'
    query(postgres_dsn, "UPDATE epochline.epoch SET settings = %s", settings)

    assert query(postgres_dsn, "SELECT interval_kept, record_limit FROM epochline.phases") == [(kept, 4)]


def test_an_epoch_says_how_long_after_the_one_before_it_was_planned(world: World, postgres_dsn: str) -> None:
    """K8."""
    world.to_committed("run-1", record_limit=4)
    world.to_committed("run-2", record_limit=4)

    asked = "SELECT since_previous_seconds FROM epochline.phases ORDER BY epoch_id"
    between = "SELECT extract(epoch FROM max(planned_at) - min(planned_at))::float8 FROM epochline.epochs"
    ((seconds,),) = query(postgres_dsn, between)
    assert query(postgres_dsn, asked) == [(None,), (pytest.approx(seconds),)]
