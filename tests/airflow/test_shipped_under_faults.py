"""The Flink examples under the scheduler, with the fault of each: Airflow restarts them as their profile says."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from epochline_examples.raw_value import TOPIC as RAW_VALUES
from epochline_examples.redis_server import CITIES, redis_server
from tests.airflow.conftest import Scheduler, Terminal, eventually
from tests.airflow.shipped import make_ready, run_sql, three_sinks
from tests.integration.kafka_topics import produce, transactional_producer
from tests.waiting import stop_process

pytestmark = pytest.mark.slow
RESTARTS = 3
NEWEST = "SELECT epoch_id, state, attempt FROM epochline.epochs WHERE pipeline = %s ORDER BY epoch_id DESC LIMIT 1"


@pytest.fixture(autouse=True)
def _ready(scheduler: Scheduler) -> None:
    make_ready(scheduler)


@pytest.fixture
def unpaused(scheduler: Scheduler, request: pytest.FixtureRequest) -> Iterator[str]:
    """A shipped DAG that runs by itself during the test."""
    dag: str = request.param
    scheduler.pause(dag, False)
    yield dag
    scheduler.pause(dag, True)


def send(scheduler: Scheduler, topic: str, *values: str) -> None:
    produce(scheduler.stack.kafka.bootstrap_servers, topic, [value.encode() for value in values])


def newest(scheduler: Scheduler, pipeline: str) -> tuple[int, str, int]:
    """The last epoch, its state and the number of its last attempt."""
    return next(iter(scheduler.query(NEWEST, pipeline)), (0, "", 0))


def errors(scheduler: Scheduler, pipeline: str, epoch: int) -> list[str]:
    asked = "SELECT error FROM epochline.attempts WHERE pipeline = %s AND epoch_id = %s AND error IS NOT NULL"
    return [error for (error,) in scheduler.query(asked, pipeline, epoch)]


def runs(scheduler: Scheduler, dag: str) -> list[dict[str, Any]]:
    found = scheduler.call("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100&order_by=-run_after")["dag_runs"]
    return list(found)


def counted(scheduler: Scheduler, query: str) -> Counter[str]:
    return Counter(dict(scheduler.query(query)))


@pytest.mark.parametrize("unpaused", ["raw_value"], indirect=True)
def test_raw_values_fail_at_15_without_end_and_are_there_once_after_the_fault_is_mended(
    scheduler: Scheduler, unpaused: str
) -> None:
    """E2, R4: Airflow restarts the run; the head stays, and no row of the epoch is visible, also not 11 to 14."""

    def values() -> Counter[str]:
        return counted(scheduler, "SELECT value, count(*)::int FROM examples.t_test GROUP BY 1") - before

    before: Counter[str] = Counter()
    before = values()
    first, second = (Counter(map(str, numbers)) for numbers in (range(1, 11), range(11, 21)))
    send(scheduler, RAW_VALUES, *(f'{{"value":"{number}"}}' for number in first))
    eventually("the first ten are there", lambda: values() == first)
    heads = scheduler.heads("raw_value")
    done, _, _ = newest(scheduler, "raw_value")
    run_sql(scheduler, "raw_value_fault.sql")
    try:
        send(scheduler, RAW_VALUES, *(f'{{"value":"{number}"}}' for number in second))
        eventually("it was restarted three times", lambda: newest(scheduler, "raw_value")[2] > RESTARTS)
        assert values() == first
        assert scheduler.heads("raw_value") == heads
        epoch, state, _ = newest(scheduler, "raw_value")
        assert (epoch, state) == (done + 1, "PLANNED")
        assert {"DivisionByZero" in error for error in errors(scheduler, "raw_value", epoch)} == {True}
    finally:
        run_sql(scheduler, "DROP TRIGGER fault_at_15 ON examples.t_test")

    eventually("all twenty are there", lambda: values() == first + second)

    assert newest(scheduler, "raw_value")[:2] == (epoch, "COMMITTED")
    assert "failed" not in {run["state"] for run in runs(scheduler, "raw_value")}, "Airflow restarted one run"


@pytest.mark.parametrize("unpaused", ["restart_demo"], indirect=True)
def test_the_restart_demo_exits_after_its_last_restart_and_the_next_scheduled_runs_say_so(
    scheduler: Scheduler,
    unpaused: str,
    terminal: Terminal,
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


@dataclass(frozen=True)
class Redis:
    """A server that can be stopped, on a socket."""

    process: psutil.Process
    socket: str

    def connections(self) -> int:
        """The connections to the socket, those included that a stopped server has not accepted."""
        return sum(self.socket in line for line in Path("/proc/net/unix").read_text().splitlines()) - 1


@pytest.fixture
def redis(scheduler: Scheduler) -> Iterator[Redis]:
    """A Redis with the cities, whose address is in the stack's home."""
    file = scheduler.stack.home.root / "examples" / "redis.url"
    file.parent.mkdir(exist_ok=True)
    with redis_server() as url:
        file.write_text(url)
        socket = url.removeprefix("unix://")
        # Redis shows its own name and its socket as its command line.
        one = next(one for one in psutil.process_iter(["cmdline"]) if socket in " ".join(one.info["cmdline"] or ()))
        yield Redis(one, socket)
        one.resume()


@pytest.mark.parametrize("unpaused", ["city_lookup"], indirect=True)
def test_look_ups_that_are_killed_are_made_again_and_one_that_times_out_is_set_aside(
    scheduler: Scheduler, redis: Redis, unpaused: str
) -> None:
    """E9, E9b: a stopped Redis answers nothing, so that every look-up takes its whole second until it times out."""

    def lines() -> Counter[str]:
        return counted(scheduler, "SELECT line, count(*)::int FROM examples.city_of_id GROUP BY 1") - before

    before: Counter[str] = Counter()
    before = lines()
    times = 12
    send(scheduler, "city_lookup", *[*CITIES] * times)
    stop_process(redis.process.pid)
    run = scheduler.trigger("city_lookup")
    eventually("the look-ups wait", lambda: redis.connections() > 0, every=0.05)
    scheduler.client("city_lookup").kill()
    redis.process.resume()
    assert scheduler.wait("city_lookup", run) == "failed", "without a schedule there is one attempt"
    assert not lines()

    assert scheduler.run("city_lookup")["run"] == "success"

    expected = Counter({f"{one}>>>{city}": times for one, city in CITIES.items()})
    assert lines() == expected
    stop_process(redis.process.pid)
    send(scheduler, "city_lookup", "5")
    assert scheduler.run("city_lookup")["run"] == "success"
    redis.process.resume()
    assert lines() == expected
    epoch, _, _ = newest(scheduler, "city_lookup")
    aside = "SELECT reason FROM epochline.quarantine WHERE pipeline = 'city_lookup' AND epoch_id = %s"
    assert scheduler.query(aside, epoch) == [("the look-up of line timed out after 1 s",)]


def test_the_savepoint_demo_goes_on_from_its_savepoint_after_a_restore(
    scheduler: Scheduler,
    terminal: Terminal,
) -> None:
    """E7: five lines, a savepoint, one more line, a restore that puts the target back too, and the line is read again."""

    def counts() -> Counter[str]:
        return counted(scheduler, "SELECT word, count FROM examples.savepoint_counts") - before

    def scheduled(times: int) -> None:
        scheduler.pause("savepoint_demo", False)
        eventually(f"{times} lines are counted", lambda: counts() == {"hello": times, "world": times})
        scheduler.pause("savepoint_demo", True)
        # Airflow starts no task of a paused DAG, so that a run may be left; no epoch may be.
        eventually("no epoch is in flight", lambda: newest(scheduler, "savepoint_demo")[1] == "COMMITTED")

    before: Counter[str] = Counter()
    before = counts()
    send(scheduler, "savepoint_demo", *["hello world"] * 5)
    scheduled(5)
    terminal("savepoint", "savepoint_demo", "five", "--reason", "before the upgrade", "--yes")
    send(scheduler, "savepoint_demo", "hello world")
    scheduled(6)

    terminal("restore", "savepoint_demo", "five", "--reason", "the upgrade went wrong", "--yes")

    assert counts() == {"hello": 5, "world": 5}
    scheduled(6)
