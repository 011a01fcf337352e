"""What a task hands Airflow of committed epochs; that Airflow keeps it is seen in `test_downstream`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from epochline.airflow.assets import announce_to_airflow, events_of, extra_of, sink_asset
from epochline.errors import LedgerUnavailableError
from epochline.ports import AnnouncedReceipt
from tests.contract.worlds import World, fake_world


class Arrived(list[Any]):
    """Events that Airflow has, as the task SDK hands them out."""

    def ascending(self, _: bool) -> Arrived:
        return self

    limit = ascending


@pytest.fixture
def world() -> World:
    made = fake_world()
    made.to_committed()
    return made


def context(world: World, *arrived: Any) -> Any:
    return {
        "dag_run": SimpleNamespace(dag_id="orders", run_id="run-1"),
        "inlet_events": {events_of(world.pipeline): Arrived(arrived)},
        "outlet_events": OutletEventAccessors(),
    }


def emitted(world: World, given: Any) -> list[Any]:
    return list(given["outlet_events"][events_of(world.pipeline)].asset_alias_events)


@pytest.mark.parametrize(
    ("sink", "uri"),
    [
        ("orders", "epochline://daily.Orders-1/orders"),
        ("sales.orders", "epochline://daily.Orders-1/sales.orders"),
        ("kafka:paid", "epochline://daily.Orders-1/kafka:paid"),
        ("files:/data/paid", "epochline://daily.Orders-1/files:%2Fdata%2Fpaid"),
        ("files:s3://lake/a?b#c", "epochline://daily.Orders-1/files:s3:%2F%2Flake%2Fa%3Fb%23c"),
        ("own:Größe", "epochline://daily.Orders-1/own:Gr%C3%B6%C3%9Fe"),
    ],
)
def test_every_sink_has_an_asset_of_its_own_that_airflow_takes_as_it_is(sink: str, uri: str) -> None:
    asset = sink_asset("daily.Orders-1", sink)

    assert asset == Asset(name=uri, uri=uri)
    assert asset.uri == uri


def test_a_task_emits_one_event_per_epoch_and_sink_with_its_offsets(world: World) -> None:
    world.kafka.produce("orders", 0, 3)
    world.to_committed("run-2")
    given = context(world)

    assert announce_to_airflow(world.ledger, world.pipeline, given) == 2

    first, second = emitted(world, given)
    assert first.dest_asset_key.uri == second.dest_asset_key.uri == "epochline://orders/orders"
    assert (first.extra["epoch_id"], first.extra["rows"]) == (1, 15)
    assert (second.extra["epoch_id"], second.extra["offsets"]["orders"]["0"]) == (2, [10, 13])


def test_what_arrived_is_not_announced_again_and_an_event_of_another_ledger_is_not_mistaken_for_it(
    world: World,
) -> None:
    """A ledger that was set back gives the epoch's number a second time."""
    given = context(world)
    announce_to_airflow(world.ledger, world.pipeline, given)
    (event,) = emitted(world, given)
    another = SimpleNamespace(extra={**event.extra, "shown_at": "2026-01-01T00:00:00+00:00"})

    assert announce_to_airflow(world.ledger, world.pipeline, context(world, another)) == 1
    assert announce_to_airflow(world.ledger, world.pipeline, context(world, another, event)) == 0


@pytest.mark.parametrize("broken", ["ledger", "airflow"])
def test_a_task_that_cannot_announce_succeeds_and_the_next_one_announces(
    world: World, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = context(world)
    if broken == "airflow":
        del given["inlet_events"]
    lost = Mock()
    lost.transaction.side_effect = LedgerUnavailableError("the connection was lost")

    assert announce_to_airflow(lost if broken == "ledger" else world.ledger, world.pipeline, given) == 0

    assert emitted(world, given) == []
    assert "epochs.not_announced pipeline=orders" in caplog.text
    assert announce_to_airflow(world.ledger, world.pipeline, context(world)) == 1


def test_what_an_event_says_does_not_depend_on_the_time_zone_of_the_session() -> None:
    """It is compared with what arrived."""
    moment = datetime(2026, 11, 22, 6, tzinfo=UTC)
    one = AnnouncedReceipt(epoch_id=1, sink="orders", rows=1, shown_at=moment, offsets={"orders": {"0": (0, 1)}})

    elsewhere = replace(one, shown_at=moment.astimezone(timezone(timedelta(hours=2))))

    assert extra_of(one) == extra_of(elsewhere)
