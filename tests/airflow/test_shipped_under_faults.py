"""The Flink examples under the scheduler, with the fault of each: Airflow restarts them as their profile says."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.airflow.conftest import Scheduler, Terminal, eventually
from tests.airflow.shipped import make_ready, run_sql, three_sinks
from tests.integration.kafka_topics import produce, transactional_producer

pytestmark = pytest.mark.slow
RESTARTS = 3
NEWEST = "SELECT epoch_id, state, attempt FROM epochline.epochs WHERE pipeline = %s ORDER BY epoch_id DESC LIMIT 1"


@pytest.fixture(autouse=True)
def _ready(scheduler: Scheduler) -> None:
    make_ready(scheduler)


@pytest.fixture
def unpaused(scheduler: Scheduler, request: pytest.FixtureRequest) -> Iterator[str]:
    dag: str = request.param
    scheduler.pause(dag, False)
    yield dag
    scheduler.pause(dag, True)


def send(scheduler: Scheduler, topic: str, *values: str) -> None:
    produce(scheduler.stack.kafka.bootstrap_servers, topic, [value.encode() for value in values])


def newest(scheduler: Scheduler, pipeline: str) -> tuple[int, str, int]:
    return next(iter(scheduler.query(NEWEST, pipeline)), (0, "", 0))


def errors(scheduler: Scheduler, pipeline: str, epoch: int) -> list[str]:
    asked = "SELECT error FROM epochline.attempts WHERE pipeline = %s AND epoch_id = %s AND error IS NOT NULL"
    return [error for (error,) in scheduler.query(asked, pipeline, epoch)]


def runs(scheduler: Scheduler, dag: str) -> list[dict[str, Any]]:
    found = scheduler.call("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100&order_by=-run_after")["dag_runs"]
    return list(found)


def counted(scheduler: Scheduler, query: str) -> Counter[str]:
    return Counter(dict(scheduler.query(query)))


@pytest.mark.parametrize("unpaused", ["restart_demo"], indirect=True)
def test_the_restart_demo_exits_after_its_last_restart_and_the_next_scheduled_runs_say_so(
    scheduler: Scheduler, unpaused: str, terminal: Terminal
) -> None:
    """E8, N1: fixedDelay(3, 5 s) is one run of four tries, at least five seconds apart; nothing is planned after it."""

    def numbers() -> Counter[str]:
        return counted(scheduler, "SELECT number::text, count(*)::int FROM examples.t_restart GROUP BY 1") - before

    paused = "SELECT paused_reason FROM epochline.pipeline WHERE pipeline = 'restart_demo' AND paused_at IS NOT NULL"
    before: Counter[str] = Counter()
    before = numbers()
    sent = Counter(map(str, range(101, 111)))
    run_sql(scheduler, "restart_demo_fault.sql")
    try:
        send(scheduler, "restart_demo", *sent)
        eventually("the pipeline is down", lambda: scheduler.query(paused))
    finally:
        run_sql(scheduler, "DROP TRIGGER fault_at_every_fifth ON examples.t_restart")
    [(reason,)] = scheduler.query(paused)
    assert "its restart strategy is used up" in reason
    assert "the program throws at every fifth number" in reason
    epoch, state, attempt = newest(scheduler, "restart_demo")
    assert (state, attempt) == ("ABORTED", 1 + RESTARTS)
    begun = "SELECT min(gap) >= interval '5 seconds' FROM (SELECT started_at - lag(started_at) OVER (ORDER BY attempt)"
    begun += " AS gap FROM epochline.attempts WHERE pipeline = 'restart_demo' AND epoch_id = %s) AS gaps"
    assert scheduler.query(begun, epoch) == [(True,)]
    assert not numbers()

    def skipped() -> str | None:
        found = scheduler.call(
            "GET", "/api/v2/dags/restart_demo/dagRuns/~/taskInstances?limit=100&order_by=-start_date"
        )
        plans = (one for one in found["task_instances"] if one["task_id"] == "plan_epoch")
        return next(
            (one["dag_run_id"] for one in plans if one["state"] == "skipped" and one["dag_run_id"] != failed), None
        )

    failed = eventually(
        "its run has failed",
        lambda: next((one["dag_run_id"] for one in runs(scheduler, "restart_demo") if one["state"] == "failed"), None),
    )
    # The profile tolerates no failure, so that Airflow pauses the DAG as well. Somebody unpauses it without a resume.
    eventually("the DAG is paused", lambda: scheduler.call("GET", "/api/v2/dags/restart_demo")["is_paused"])
    scheduler.pause("restart_demo", False)
    eventually(
        "the next scheduled run is skipped and says so",
        lambda: (run := skipped()) and "used up" in scheduler.log("restart_demo", run, "plan_epoch"),
    )
    assert newest(scheduler, "restart_demo")[0] == epoch

    terminal("resume", "restart_demo", "--reason", "the program is mended", "--yes")
    eventually("each number is there once", lambda: numbers() == sent)


@pytest.mark.parametrize("unpaused", ["word_count"], indirect=True)
def test_the_word_count_is_exact_after_ten_restarts_and_reads_no_aborted_record(
    scheduler: Scheduler, unpaused: str
) -> None:
    """E3, K4, S2: an epoch every ten seconds; words of an aborted transaction are not counted."""

    def counts() -> Counter[str]:
        return counted(scheduler, "SELECT word, count FROM examples.t_wordcount") - before

    before: Counter[str] = Counter()
    before = counts()
    done, _, _ = newest(scheduler, "word_count")
    servers = scheduler.stack.kafka.bootstrap_servers
    run_sql(scheduler, "word_count_fault.sql")
    try:
        with transactional_producer(servers, "word_count_faults") as producer:
            producer.begin_transaction()
            producer.send("word_count", b"ghost hello").get(30)
            producer.abort_transaction()
            producer.begin_transaction()
            for line in (b"hello world", b"hello flink"):
                producer.send("word_count", line).get(30)
            producer.commit_transaction()

        eventually("it was restarted ten times", lambda: newest(scheduler, "word_count")[2] > 10, seconds=900, every=1)
        assert not counts()
    finally:
        run_sql(scheduler, "DROP TRIGGER fault_of_counts ON examples.t_wordcount")

    eventually("the words are counted", lambda: counts() == {"hello": 2, "world": 1, "flink": 1})
    epoch, state, _ = newest(scheduler, "word_count")
    assert (epoch, state) == (done + 1, "COMMITTED")
    assert len([error for error in errors(scheduler, "word_count", epoch) if "the word count fails" in error]) >= 10
    assert counted(scheduler, "SELECT word, count FROM examples.word_count") == before + counts()


@pytest.mark.parametrize("unpaused", ["sink_comparison"], indirect=True)
def test_three_sinks_hold_the_same_although_the_program_throws_at_its_twelfth_row(
    scheduler: Scheduler, unpaused: str
) -> None:
    """E6, X25: the topic as a read_committed consumer sees it, the table of rows and the table of sums.

    The counter of the program is back at zero after each restart: of ten rows in an epoch, the twelfth row since then is
    the second row of the next epoch.
    """

    def sums() -> list[tuple[int, int]]:
        return [(rows, total) for rows, _, total in three_sinks(scheduler)]

    [(base, total), *_] = sums() if three_sinks(scheduler)[1][2] is not None else [(0, 0)]
    size = 10

    def tuples(epoch: int) -> list[tuple[int, int]]:
        """Send the tuples of an epoch; give what each sink must hold after it."""
        sent = [{"key1": f"fault-{epoch}-{at}", "key2": "b", "key3": "c", "indicate": at} for at in range(size)]
        send(scheduler, "flink_input", *map(json.dumps, sent))
        return [(base + epoch * size, total + epoch * sum(range(size)))] * 3

    def is_now(expected: list[tuple[int, int]]) -> bool:
        return sums() == expected

    run_sql(scheduler, "sink_comparison_fault.sql")
    tries = {}
    try:
        for number in (1, 2, 3):
            expected = tuples(number)
            eventually("the three sinks hold the same", partial(is_now, expected), every=0.5)
            epoch, _, tries[number] = newest(scheduler, "sink_comparison")
            said = errors(scheduler, "sink_comparison", epoch)
            assert len(said) == (number > 1), "the second and the third epoch fail once, at their second row"
            assert all("compare test exception." in error for error in said)
    finally:
        run_sql(scheduler, "DROP TRIGGER compare_test_exception ON examples.test_two_step_compare")

    assert tries == {1: 1, 2: 2, 3: 2}
    records, uuids, _ = three_sinks(scheduler)[0]
    assert records == uuids, "each record has a uuid of its own"
