"""The nemesis, short: a seed has one schedule, and five minutes of it lose and double nothing."""

import pytest

from tests.nemesis.__main__ import main
from tests.nemesis.faults import WEIGHTS, schedule


def test_a_seed_has_one_schedule_and_five_minutes_of_it_hold_every_kind_of_fault() -> None:
    """F37: each kind comes once before any comes twice by chance."""
    planned = schedule(7, 300)

    assert schedule(7, 300) == planned != schedule(8, 300)
    assert {fault.kind for fault in planned} == WEIGHTS.keys()
    assert planned == sorted(planned, key=lambda fault: fault.at)
    assert len(schedule(7, 3600)) > 100


@pytest.mark.slow
def test_five_minutes_of_dying_nodes_lose_nothing_and_double_nothing() -> None:
    """F37, I1 to I8: three Kafka nodes, PostgreSQL with a standby, Airflow and its Spark server are killed at random."""
    assert main(["--minutes", "5", "--records", "500000"]) == 0
