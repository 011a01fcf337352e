"""State and event time under a real scheduler: what one run leaves, the next one goes on from."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import Scheduler


@pytest.mark.slow
def test_a_run_counts_on_from_the_state_that_the_run_before_it_committed(scheduler: Scheduler) -> None:
    """C1, E3, S14: each task is a process of its own, and the state is in the database alone."""
    scheduler.prepare("word_count", {0: ["hello world", "hello flink"]})
    assert scheduler.run("word_count")["run"] == "success"

    scheduler.produce("word_count", {1: ["hello"]})
    assert scheduler.run("word_count")["run"] == "success"

    for table in ("t_wordcount", "word_count"):
        counted = scheduler.query(f"SELECT word, count FROM {table} ORDER BY word")
        assert counted == [("flink", 1), ("hello", 3), ("world", 1)]
    newest = "SELECT max(epoch_id) FROM {} WHERE pipeline = 'word_count'"
    assert scheduler.query(newest.format("epochline.state")) == scheduler.query(newest.format("epochline.epochs"))


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
