"""F35: this code reads and finishes what was written under older views and functions of the ledger.

Nothing was released before revision 0001, so there is no older revision to upgrade from.
"""

from __future__ import annotations

import pytest

from epochline.coordinator import PlanOutcome, abort
from epochline.postgres.ledger.migrate import head_revision, upgrade
from epochline.protocol.epoch import CommitOutcome, EpochState
from epochline.protocol.offsets import chain_breaks
from tests.contract.worlds import World, postgres_world, run
from tests.crash.reliability import Recovery
from tests.databases import query, sqlalchemy_url

OLDER = """
DROP VIEW epochline.event_times, epochline.receipts, epochline.savepoints;
CREATE OR REPLACE FUNCTION epochline.take_epoch(consumer text, pipeline text, sink text) RETURNS bigint
    LANGUAGE sql AS 'SELECT NULL::bigint';
UPDATE epochline.definition SET sha256 = 'of an older version';
"""
"""Makes the views and functions of a database those of an older version."""
ROWS = "SELECT value, _partition, _offset, _epoch FROM orders ORDER BY 2, 3"
EPOCHS = "SELECT epoch_id, state, records_read, rows_written FROM epochline.epochs ORDER BY 1"


@pytest.fixture
def old(postgres_dsn: str) -> str:
    """The libpq URL of a database with an aborted, a committed and a sealed epoch, and with older views and functions."""
    world = postgres_world(postgres_dsn)
    world.plan("run-0", record_limit=4)
    world.begin(1, "run-0")
    abort(world.ledger, "orders", 1, run("run-0"), reason="somebody stopped it")
    world.to_committed("run-1", record_limit=6)
    world.to_sealed("run-2", record_limit=6)
    query(postgres_dsn, OLDER)
    return postgres_dsn


@pytest.fixture
def upgraded(old: str) -> World:
    """The pipeline of the old ledger, in the hands of this code."""
    upgrade(sqlalchemy_url(old))
    return postgres_world(old)


@pytest.mark.fault("F35")
def test_what_was_committed_before_the_upgrade_stays_and_is_known(old: str) -> None:
    rows, epochs = query(old, ROWS), query(old, EPOCHS)

    upgrade(sqlalchemy_url(old))

    assert query(old, "SELECT version_num FROM epochline.alembic_version") == [(head_revision(),)]
    assert (query(old, ROWS), query(old, EPOCHS)) == (rows, epochs)
    assert [state for _id, state, *_ in epochs] == ["ABORTED", "COMMITTED", "PRE_COMMITTED"]


@pytest.mark.fault("F35")
def test_an_upgrade_brings_back_every_view_and_function_and_a_repeat_changes_nothing(old: str) -> None:
    applied = "SELECT name, sha256, applied_at FROM epochline.definition ORDER BY name"
    views = "SELECT count(*) FROM pg_views WHERE schemaname = 'epochline'"
    [(before,)] = query(old, views)

    upgrade(sqlalchemy_url(old))

    assert query(old, views) == [(before + 3,)]
    assert query(old, "SELECT epochline.take_epoch('reports', 'orders', 'orders')") == [(2,)]
    first = query(old, applied)
    assert [(name, len(sha256)) for name, sha256, _at in first] == [("functions", 64), ("roles", 64), ("views", 64)]
    upgrade(sqlalchemy_url(old))
    assert query(old, applied) == first


@pytest.mark.fault("F35")
def test_an_epoch_sealed_before_the_upgrade_is_committed_after_it(upgraded: World, recovery: Recovery) -> None:
    """INV-5, INV-6: its staging is the old code's."""
    recovery.last_fault()
    receipt = upgraded.commit(3)

    assert receipt.outcome is CommitOutcome.COMMITTED
    assert upgraded.commit(3).outcome is CommitOutcome.ALREADY_COMMITTED
    assert upgraded.left_over() == 0
    recovery.took()


@pytest.mark.fault("F35")
def test_another_run_recovers_it_and_goes_on_where_the_old_code_stopped(
    upgraded: World, old: str, recovery: Recovery
) -> None:
    """INV-1, INV-6: every record once, by two versions of the code."""
    recovery.last_fault()
    planned = upgraded.to_committed("after the upgrade")

    assert planned.outcome is PlanOutcome.PLANNED
    assert planned.epoch is not None
    assert planned.epoch.epoch_id == 4
    assert any("committed epoch 3" in note for note in planned.notes)
    assert upgraded.epoch(3).state is EpochState.COMMITTED
    assert [row[:3] for row in upgraded.visible()] == [
        ("orders", partition, offset) for partition, records in ((0, 10), (1, 5)) for offset in range(records)
    ]
    for partition in (0, 1):
        ranges = "SELECT start_offset, until_offset FROM epochline.committed_range WHERE partition = %s"
        assert chain_breaks(query(old, ranges, partition)) == []
    recovery.took()


@pytest.mark.fault("F35")
def test_a_run_that_was_aborted_before_the_upgrade_is_not_tried_on_a_range_that_was_taken(upgraded: World) -> None:
    """U5: across the upgrade as within one version."""
    upgraded.commit(3)

    planned = upgraded.plan("run-0")

    assert any("epoch 1 of orders is not tried again" in note for note in planned.notes)
