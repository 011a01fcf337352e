"""What Prometheus is told of pipelines, from a real ledger by a reader's login. Who may ask: tests/airflow/test_metrics.py."""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bench.pages import fill
from epochline.airflow.pages import totals
from epochline.airflow.pages.metrics import ENDS_HOLD_SECONDS, PHASES, SERIES, STATEMENT_SECONDS, Scrape
from epochline.operations import refresh_log_ends
from epochline.protocol.planning import Retention
from epochline.protocol.standing import StandingWord
from tests.contract.worlds import World, aborted, quarantined
from tests.databases import query

Values = dict[str, float]
HOSTILE = 'a"b\\c\nd{pipeline="x"} 1 %s é'


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    totals._settled.clear()
    yield
    totals._settled.clear()


def told(dsn: str, seen: Callable[[list[str]], set[str]] = set) -> Values:
    """Each series by its name with its labels, as Prometheus reads the text."""
    text = generate_latest(Scrape(lambda: dsn, seen)).decode()
    return {
        one.name.removeprefix("epochline_") + "".join(f" {label}" for label in one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def retain(world: World) -> None:
    world.kafka.retention["orders"] = Retention(cleanup_policy="delete", milliseconds=3_600_000, bytes=-1)
    refresh_log_ends(world.ledger, world.kafka, [world.pipeline], "epochline_kafka")


def test_a_committed_epoch_is_told_with_its_counts_phases_lag_and_state(world: World, reader: str) -> None:
    """Issue 40."""
    quarantined(world)
    world.kafka.produce("orders", 0, 60)
    aborted(world, 2)
    world.to_committed("run-3", record_limit=10)
    retain(world)

    values = told(reader)

    counted = {name: values[f"{name}_total orders"] for name in ("records", "records_quarantined", "rows_written")}
    assert counted == {"records": 25, "records_quarantined": 2, "rows_written": 23}
    assert (values["epochs_committed_total orders"], values["epochs_aborted_total orders"]) == (2, 1)
    for name in ("records_skipped", "records_too_late", "fenced_writes", "retries"):
        assert values[f"{name}_total orders"] == 0, name
    assert (values["up"], values["pipeline_state orders behind"]) == (1, 1)
    assert values["lag_records orders"] == 50
    assert 0 <= values["lag_seconds orders"] < 60
    assert 3000 < values["time_to_loss_seconds orders"] <= 3600
    assert 0 <= values["log_ends_age_seconds orders"] < 60
    assert values["last_commit_timestamp_seconds orders"] == pytest.approx(time.time(), abs=60)
    assert {"start", "stage", "seal", "commit"} <= {one.split()[1] for one in values if "phase" in one}
    assert values["unpublished_epochs orders orders"] == 0


def test_an_empty_ledger_is_up(reader: str) -> None:
    assert told(reader) == {"up": 1}


def test_a_counter_never_goes_down_and_is_the_same_for_a_server_that_was_started_again(
    world: World, reader: str
) -> None:
    """Each epoch is read once, in several steps; an aborted one that is tried again is counted as it is then."""
    seen: list[Values] = []

    def totals_of() -> Values:
        return {name: value for name, value in told(reader).items() if "_total " in name}

    for number in range(3):
        world.to_committed(f"run-{number}", record_limit=2)
        seen.append(totals_of())
    aborted(world, 4)
    seen.append(totals_of())
    world.to_committed("run-4", record_limit=2)
    seen.append(totals_of())

    for before, after in pairwise(seen):
        assert all(before[name] <= after[name] for name in before)
    assert seen[-1]["epochs_committed_total orders"] == 4
    totals._settled.clear()
    assert totals_of() == seen[-1]
    with pytest.MonkeyPatch.context() as patched:
        totals._settled.clear()
        patched.setattr(totals, "_MOST", 1)
        assert totals_of() == seen[-1]


def test_a_restored_ledger_is_added_up_again(world: World, reader: str, postgres_dsn: str) -> None:
    """Another epoch has the number that was known, or none has."""
    for number in range(3):
        world.to_committed(f"run-{number}", record_limit=2)
    assert told(reader)["records_total orders"] == 6
    query(
        postgres_dsn,
        "UPDATE epochline.epoch SET committed_at = committed_at - interval '1 day', records_read = 1, records_passed = 1"
        " WHERE epoch_id = 3",
    )

    assert told(reader)["records_total orders"] == 5


def test_ends_of_logs_that_are_old_are_not_told_as_new(world: World, reader: str, postgres_dsn: str) -> None:
    world.to_committed("run-1", record_limit=4)
    retain(world)
    assert told(reader)["lag_records orders"] == 11
    query(postgres_dsn, f"UPDATE epochline.log_end SET observed_at = now() - interval '{ENDS_HOLD_SECONDS + 60} s'")

    values = told(reader)

    assert values["log_ends_age_seconds orders"] > ENDS_HOLD_SECONDS
    assert [one for one in values if one.startswith(("lag_", "time_to_loss"))] == []


def test_before_a_first_commit_nobody_knows_how_old_unread_records_are(world: World, reader: str) -> None:
    """A pipeline that never commits does not look as if it were up to date, and far from a loss, at each refresh."""
    aborted(world, 1)
    for _ in range(2):
        retain(world)

    values = told(reader)

    assert values["lag_records orders"] == 15
    assert not {"lag_seconds orders", "time_to_loss_seconds orders"} & values.keys()


def test_a_topic_that_is_no_longer_read_does_not_make_the_ends_old(
    world: World, reader: str, postgres_dsn: str
) -> None:
    world.to_committed("run-1", record_limit=4)
    query(
        postgres_dsn,
        "INSERT INTO epochline.log_end (pipeline, topic, topic_id, partition, log_start, last_stable, observed_at)"
        " VALUES ('orders', 'former', 'former', 0, 0, 0, now() - interval '9 days')",
    )

    assert told(reader)["log_ends_age_seconds orders"] < 60


def test_a_ledger_that_cannot_be_read_is_down_and_nothing_else_is_told(
    world: World, reader: str, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, without the password."""
    caplog.set_level(logging.DEBUG)
    world.to_committed()
    assert told(reader)["up"] == 1

    password = reader.split("@")[0].rpartition(":")[2]
    for wrong in ("127.0.0.1:1/none", "127.0.0.1:not/none", "[::1/none"):
        assert told(f"postgresql://nobody:{password}@{wrong}") == {"up": 0}
    assert caplog.text.count("metrics.ledger_down") == 3
    assert password not in caplog.text
    query(postgres_dsn, "REVOKE SELECT ON epochline.log_ends FROM epochline_reader")
    assert told(reader) == {"up": 0}


def test_a_statement_that_takes_too_long_is_ended(world: World, reader: str, postgres_dsn: str) -> None:
    world.to_committed()
    query(
        postgres_dsn,
        "CREATE OR REPLACE VIEW epochline.versions AS SELECT version_num AS revision, oldest_version"
        f" FROM epochline.alembic_version WHERE pg_sleep({STATEMENT_SECONDS * 10}) IS NOT NULL",
    )

    began = time.monotonic()

    assert told(reader) == {"up": 0}
    assert time.monotonic() - began < STATEMENT_SECONDS * 3


def test_the_number_of_series_is_bounded_whatever_a_pipeline_went_through(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """Names that somebody declared, and words of this package, are all that a label holds."""
    quarantined(world)
    world.kafka.produce("orders", 0, 60)
    aborted(world, 2, HOSTILE, note=HOSTILE)
    world.to_committed("run-3")
    retain(world)
    query(postgres_dsn, "UPDATE epochline.epoch SET run_id = %s, dag_id = %s", HOSTILE, HOSTILE)
    before = len(told(reader))
    query(
        postgres_dsn,
        "UPDATE epochline.pipeline SET paused_at = now(), paused_by = %s, paused_reason = %s",
        HOSTILE,
        HOSTILE,
    )

    values = told(reader)

    assert before == len(values) <= 1 + SERIES + 1, sorted(values)
    words = {word for one in values for word in one.split()[1:]}
    assert words <= {"orders", *StandingWord, *PHASES}


def test_a_hostile_name_of_a_sink_is_one_label(world: World, reader: str, postgres_dsn: str) -> None:
    world.to_committed()
    query(
        postgres_dsn,
        "ALTER TABLE epochline.receipt DISABLE TRIGGER USER; UPDATE epochline.receipt SET sink = %s",
        HOSTILE,
    )

    values = told(reader)

    assert values[f"unpublished_epochs orders {HOSTILE}"] == 0
    assert values["up"] == 1


def test_only_the_pipelines_that_may_be_seen_are_told(world: World, reader: str) -> None:
    """SEC-9."""
    world.to_committed()

    assert told(reader, lambda names: set()) == {"up": 1}
    assert "lag_records orders" in told(reader)


def test_a_dropped_pipeline_is_no_longer_told(world: World, reader: str, postgres_dsn: str) -> None:
    world.to_committed()
    query(postgres_dsn, "UPDATE epochline.pipeline SET dropped_at = now(), dropped_by = 'ada', dropped_reason = 'why'")

    assert told(reader) == {"up": 1}


def test_a_scrape_after_100_000_epochs_takes_no_longer_than_after_one(
    world: World, reader: str, postgres_dsn: str
) -> None:
    """The first one of an API server reads each epoch once."""
    world.to_committed("run-1", record_limit=4)
    fill(postgres_dsn, 100_000)
    assert told(reader)["epochs_committed_total orders"] == 100_000

    began = time.monotonic()
    told(reader)

    assert time.monotonic() - began < 1
