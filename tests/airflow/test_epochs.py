"""Epochs under a real scheduler: ten thousand lines of a log, each once; what one run leaves, the next goes on from."""

import pytest

from tests.airflow.conftest import Scheduler


def test_a_dag_reads_a_growing_table_by_the_connection_of_its_source(scheduler: Scheduler) -> None:
    """N2: no topic, no group, and the job gets the connection in its credentials file."""
    scheduler.make_targets("growing")
    scheduler.query(
        "CREATE TABLE growing_events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text);"
        " INSERT INTO growing_events (said) SELECT 'row ' || n FROM generate_series(1, 30) n"
    )

    run = scheduler.run("growing")

    assert run.pop("abort_epoch") == "skipped"
    assert run == dict.fromkeys(("run", "plan_epoch", "pre_commit", "commit_epoch"), "success")
    assert scheduler.query("SELECT id, said FROM growing ORDER BY id") == scheduler.query(
        "SELECT id, said FROM growing_events ORDER BY id"
    )
    assert scheduler.heads("growing") == {0: 31}


def test_an_epoch_with_nothing_to_read_skips_its_run_and_keeps_its_origins(scheduler: Scheduler) -> None:
    """U1: no epoch row; then a partition is added, and nothing in it is missed (S2)."""
    scheduler.prepare("nothing", {})

    run_id = scheduler.trigger("nothing")

    assert scheduler.wait("nothing", run_id) == "success"
    run = scheduler.tasks("nothing", run_id)
    assert (run["plan_epoch"], run["commit_epoch"]) == ("skipped", "skipped")
    assert scheduler.outcome("nothing", run_id, "plan_epoch") == "no epoch · nothing to read · nothing to do"
    assert scheduler.query("SELECT count(*) FROM epochline.epochs WHERE pipeline = 'nothing'") == [(0,)]
    assert scheduler.heads("nothing") == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.slow
def test_a_run_without_records_closes_the_windows_of_an_idle_source(scheduler: Scheduler) -> None:
    """E11: three tasks over no range; the next run, with nothing to read and nothing open, is skipped."""
    scheduler.prepare("closing", {0: ["a"]})
    assert scheduler.run("closing")["run"] == "success"
    assert scheduler.query("SELECT count(*) FROM closing") == [(0,)]

    run = scheduler.run("closing")

    assert (run["plan_epoch"], run["pre_commit"], run["commit_epoch"]) == ("success", "success", "success")
    assert scheduler.query("SELECT value, sum(times) FROM closing GROUP BY value") == [("a", 1)]
    kinds = scheduler.query("SELECT kind FROM epochline.epochs WHERE pipeline = 'closing' ORDER BY epoch_id")
    assert kinds == [("regular",), ("idle",)]
    assert scheduler.run("closing")["plan_epoch"] == "skipped"
