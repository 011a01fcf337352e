"""Where logs ended when Kafka was last asked and how long it keeps them, as the ledger keeps it for people (issue 19)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from epochline.cli import database
from epochline.operations import refresh_log_ends
from epochline.protocol.planning import Retention
from epochline.protocol.standing import standing_of_pipeline
from tests.contract.worlds import World, orders, postgres_world
from tests.databases import query

ENDS = "SELECT partition, log_start, last_stable FROM epochline.log_ends WHERE pipeline = 'orders' ORDER BY partition"


def test_a_plan_stores_where_each_log_ends_and_the_next_plan_stores_it_again(postgres_dsn: str) -> None:
    world = postgres_world(postgres_dsn)
    world.to_committed("run-1", record_limit=4)
    assert query(postgres_dsn, ENDS) == [(0, 0, 10), (1, 0, 5)]
    ((before,),) = query(postgres_dsn, "SELECT max(observed_at) FROM epochline.log_ends")

    world.kafka.produce("orders", 1, 3)
    world.to_committed("run-2")

    assert query(postgres_dsn, ENDS) == [(0, 0, 10), (1, 0, 8)]
    ((oldest,),) = query(postgres_dsn, "SELECT min(observed_at) FROM epochline.log_ends")
    assert oldest > before


def test_a_schedule_that_stopped_is_silent_although_the_ends_of_its_logs_are_stored(postgres_dsn: str) -> None:
    """U3: a DAG stores them every five minutes, also those of a pipeline whose own DAG is paused."""
    world = postgres_world(postgres_dsn)
    world.pipeline = orders(schedule=timedelta(minutes=10))
    world.to_committed()
    world.plan("run-2")  # nothing to read
    query(postgres_dsn, "UPDATE epochline.pipeline SET last_plan_at = last_plan_at - interval '29 minutes'")
    assert word(postgres_dsn) == "caught up"

    query(postgres_dsn, "UPDATE epochline.pipeline SET last_plan_at = last_plan_at - interval '2 minutes'")
    refresh_log_ends(world.ledger, world.kafka, [world.pipeline], "epochline_kafka")
    assert word(postgres_dsn) == "silent"
    world.plan("run-3")
    assert word(postgres_dsn) == "caught up"


def word(dsn: str) -> str:
    with database.session(dsn) as opened:
        (row,) = database.ask(opened, "standing", pipeline="orders")
    return standing_of_pipeline(row).word


def retaining(dsn: str, policy: str = "delete", milliseconds: int = 3_600_000) -> tuple[World, Callable[[], object]]:
    """A world whose topic is kept so long, and what asks its Kafka again."""
    world = postgres_world(dsn)
    world.kafka.retention["orders"] = Retention(cleanup_policy=policy, milliseconds=milliseconds, bytes=-1)
    return world, lambda: refresh_log_ends(world.ledger, world.kafka, [world.pipeline], "epochline_kafka")


def test_the_time_to_loss_counts_from_the_last_moment_at_which_everything_was_read(postgres_dsn: str) -> None:
    """Issue 19: no record that is unread now was written before; so the least time to loss needs no record read."""
    world, refresh = retaining(postgres_dsn)
    world.to_committed()

    def refreshed() -> list[Any]:
        refresh()
        since, to_loss = "unread_since - %s::timestamptz", "round(seconds_to_loss / 60)"
        return query(postgres_dsn, f"SELECT {since}, {to_loss} FROM epochline.log_ends ORDER BY partition", caught_up)

    caught_up = None
    assert refreshed() == [(None, None), (None, None)]
    [(caught_up,)] = query(postgres_dsn, "SELECT observed_at FROM epochline.log_ends WHERE partition = 1")
    world.kafka.produce("orders", 1, 3)
    for _ in range(3):
        assert refreshed() == [(None, None), (timedelta(0), 60)]

    world.to_committed("run-2")
    assert refreshed() == [(None, None), (None, None)]


def test_the_newest_committed_record_moves_the_time_to_loss_while_a_backlog_is_read(postgres_dsn: str) -> None:
    world, refresh = retaining(postgres_dsn)
    world.to_committed("run-1", record_limit=4)
    query(postgres_dsn, "UPDATE epochline.planned_range SET newest_timestamp = now() - interval '50 min'")

    refresh()

    assert query(postgres_dsn, "SELECT round(seconds_to_loss / 60) FROM epochline.log_ends") == [(10,), (10,)]


@pytest.mark.parametrize(("policy", "milliseconds"), [("compact", 3_600_000), ("delete", -1)])
def test_a_log_that_loses_nothing_by_age_has_no_time_to_loss(postgres_dsn: str, policy: str, milliseconds: int) -> None:
    world, refresh = retaining(postgres_dsn, policy, milliseconds)
    world.to_committed("run-1", record_limit=4)
    query(postgres_dsn, "UPDATE epochline.planned_range SET newest_timestamp = now()")

    refresh()

    kept = "SELECT unread_since IS NULL, seconds_to_loss, cleanup_policy, retention_ms FROM epochline.log_ends"
    assert query(postgres_dsn, kept) == [(False, None, policy, milliseconds)] * 2


def test_a_plan_asks_nothing_of_the_retention_and_keeps_what_is_known(postgres_dsn: str) -> None:
    world, refresh = retaining(postgres_dsn, milliseconds=60_000)
    refresh()
    assert query(postgres_dsn, "SELECT FROM epochline.log_ends") == [], "the pipeline has never planned"
    world.to_committed("run-1", record_limit=4)
    refresh()

    world.to_committed("run-2", record_limit=4)

    assert query(postgres_dsn, "SELECT retention_ms FROM epochline.log_ends") == [(60_000,), (60_000,)]


def test_a_head_is_the_end_of_its_chain_however_many_epochs_made_it(postgres_dsn: str) -> None:
    """The view finds the head by an index; the newest range of each chain says the same."""
    world = postgres_world(postgres_dsn)
    for number in range(3):
        world.to_committed(f"run-{number}", record_limit=2)

    asked = "SELECT partition, origin_offset, next_offset FROM epochline.heads WHERE pipeline = 'orders' ORDER BY 1"
    heads = query(postgres_dsn, asked)
    ranges = query(
        postgres_dsn,
        "SELECT partition, min(until_offset) FILTER (WHERE start_offset IS NULL), max(until_offset)"
        " FROM epochline.committed_range WHERE pipeline = 'orders' GROUP BY 1 ORDER BY 1",
    )
    assert heads == ranges
    assert any(end > origin for _, origin, end in heads)
