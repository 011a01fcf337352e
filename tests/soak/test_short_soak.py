"""The soak, short: the schedule of faults is the seed's, and a minute of them loses and doubles nothing."""

from __future__ import annotations

from tests.soak.__main__ import main
from tests.soak.faults import BY_OPERATORS, ON_TASKS, SERVERS, UNDER_AIRFLOW, schedule


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    """F37."""
    assert schedule(7, 600, airflow=True) == schedule(7, 600, airflow=True)
    assert schedule(7, 600, airflow=True) != schedule(8, 600, airflow=True)


def test_ten_minutes_hold_every_kind_of_fault() -> None:
    """F37: each kind comes once before any comes twice by chance."""
    planned = schedule(7, 600, airflow=True)

    assert {fault.kind for fault in planned} == {*SERVERS, *ON_TASKS, *BY_OPERATORS, *UNDER_AIRFLOW}
    assert len(planned) >= 60
    assert planned == sorted(planned, key=lambda fault: fault.at)


def test_a_minute_of_faults_loses_nothing_and_doubles_nothing() -> None:
    """F37, I1 to I8: kills, stops, cut connections, restarts of PostgreSQL and Kafka, aborts, clears, double triggers.

    Without Airflow, whose driver, tasks and scheduler `make soak` kills as well.
    """
    assert main(["--minutes", "1", "--seed", "20261121", "--without-airflow"]) == 0
