"""Every shipped DAG runs one epoch under the scheduler, as its profile says, and its sinks hold what was produced."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC
from typing import Any

import pytest

from epochline_examples.programs import PROGRAMS, Look, Send
from epochline_examples.raw_value import produce as produce_raw_values
from epochline_examples.redis_server import CITIES, redis_server
from tests.airflow.conftest import SHIPPED, Scheduler, eventually
from tests.airflow.shipped import make_ready, three_sinks
from tests.integration.kafka_topics import produce
from tests.integration.shop import Shop
from tests.integration.sinks_world import seen

WITHOUT_PIPELINE = frozenset({"epoch_summaries"})
ONE_OF_MANY = frozenset({"access_log", "checkpoint_demo", "ip_count_read_on"})
"""The first is also run by other tests, the second has a new record each second, and the third may be woken between two
records of a transaction."""


def first_input(program: str) -> list[bytes]:
    return [line.encode() for line in next(one for one in PROGRAMS[program].steps if isinstance(one, Send)).lines]


def expected_rows(program: str) -> tuple[tuple[str, ...], ...]:
    result = PROGRAMS[program].result
    assert isinstance(result, Look)
    return result.rows


SHOP = Shop(random.Random(7))
CHANGES = [record for _ in range(30) for record in SHOP.change()]
WORDS = [b"hello world", b"hello flink"]
COUNTED = [("flink", 1), ("hello", 2), ("world", 1)]
BYTES = [b"a", b"b", b"c"]
TUPLES = first_input("sink_comparison")
SUM = sum(json.loads(one)["indicate"] for one in TUPLES)
INPUT = {
    "city_lookup": [one.encode() for one in CITIES],
    "access_log": [
        f'10.20.30.{n % 2} - - [17/May/2015:10:05:0{n} +0000] "GET /{n} HTTP/1.1" 200 {n} "-" "-"'.encode()
        for n in range(6)
    ],
    "flink_input": TUPLES,
    "flink_kafka_poc_input": BYTES,
    "ip_count_source": [f"2019-09-15_10:00:{second:02} 192.168.1.1".encode() for second in range(6)],
    "joined_customers": [b'{"customer_id": 1, "name": "Ada"}', b'{"customer_id": 2, "name": "Grace"}'],
    "joined_orders": first_input("orders_with_customers"),
    "order_totals": first_input("batch_sql"),
    "order_windows": [
        json.dumps({"orderId": f"{at}", "userId": 1, "money": money, "createTime": 1_772_323_200_000 + 1000 * at}).encode()
        for at, money in ((0, 10), (2, 40), (4, 25), (7, 5))
    ],
    "restart_demo": [b"%d" % number for number in range(1, 6)],
    "savepoint_demo": WORDS,
    "word_count": WORDS,
}  # fmt: skip
WINDOW = [("192.168.1.1", "10:00:00", 5)]

Check = tuple[Callable[[Scheduler], Any], Any]


def rows(query: str) -> Callable[[Scheduler], Any]:
    return lambda scheduler: scheduler.query(query)


def records(topic: str) -> Callable[[Scheduler], list[str]]:
    return lambda scheduler: sorted(one.value or "" for one in seen(scheduler.stack.kafka.bootstrap_servers, topic))


def windows(table: str) -> Callable[[Scheduler], Any]:
    return rows(f"SELECT ip, to_char(window_start AT TIME ZONE 'UTC', 'HH24:MI:SS'), count FROM examples.{table}")


def orders(scheduler: Scheduler) -> Any:
    found = scheduler.query("SELECT id, customer, amount, status, placed_at FROM examples.orders")
    return {key: (customer, amount, status, at.astimezone(UTC)) for key, customer, amount, status, at in found}


def windows_sent(scheduler: Scheduler) -> Any:
    sent = [json.loads(value) for value in records("ip_count_sink")(scheduler)]
    return [(one["ip"], one["window_start"][11:19], one["count"]) for one in sent]


def summaries(scheduler: Scheduler) -> Any:
    """Epochs that the consumer counted otherwise than the table has them, and whether it counted any."""
    if scheduler.query("SELECT to_regclass('examples.epoch_summaries')") == [(None,)]:
        return None
    return scheduler.query(
        "WITH made AS (SELECT _epoch AS epoch_id, count(*) AS rows FROM access_log GROUP BY 1)"
        " SELECT count(*) FILTER (WHERE s.rows IS DISTINCT FROM made.rows), count(*) > 0"
        " FROM made FULL JOIN examples.epoch_summaries s USING (epoch_id)"
    )


CHECKS: dict[str, Check] = {
    # First those that run every second until they are paused.
    "checkpoint_demo": (rows("SELECT DISTINCT value FROM examples.checkpoint_demo"), [("hello flink",)]),
    "running_counts": (records("flink_kafka2"), sorted(f'{{"value":"{n}"}}:::1' for n in range(1, 21))),
    "savepoint_demo": (rows("SELECT word, count FROM examples.savepoint_counts ORDER BY 1"), COUNTED),
    "restart_demo": (rows("SELECT number FROM examples.t_restart ORDER BY 1"), [(n,) for n in range(1, 6)]),
    "ip_count": (windows("ip_count"), WINDOW),
    "ip_count_topic": (windows_sent, WINDOW),
    "ip_count_read_on": (windows("ip_count_read_on"), WINDOW),
    "word_count": (rows("SELECT word, count FROM examples.t_wordcount ORDER BY 1"), COUNTED),
    "sink_comparison": (three_sinks, [(len(TUPLES), len(TUPLES), SUM)] * 3),
    "raw_value": (rows("SELECT value::int FROM examples.t_test ORDER BY 1"), [(n,) for n in range(1, 21)]),
    "access_log": (
        rows(
            "SELECT client, count(*)::int, sum(a.bytes)::int, max(r.requests)::int FROM access_log a"
            " JOIN requests_per_client r USING (client) WHERE client LIKE '10.20.30.%' GROUP BY client ORDER BY client"
        ),
        [("10.20.30.0", 3, 6, 3), ("10.20.30.1", 3, 9, 3)],
    ),
    "cdc_orders": (orders, SHOP.orders),
    "city_lookup": (
        rows("SELECT line FROM examples.city_of_id ORDER BY id"),
        [(f"{one}>>>{city}",) for one, city in CITIES.items()],
    ),
    "epoch_summaries": (summaries, [(0, True)]),
    "order_totals": (
        rows(
            "SELECT user_name, total_money::text, max_money::text, min_money::text, total_count::text"
            " FROM examples.order_totals ORDER BY order_totals.total_money"
        ),
        [*expected_rows("batch_sql")],
    ),
    "order_windows": (
        rows("SELECT user_name, total_count, max_money, min_money FROM examples.window_totals"),
        [("1", 3, 40, 10)],
    ),
    "orders_with_customers": (
        rows("SELECT order_id, name, amount::text FROM examples.orders_with_customers ORDER BY order_id"),
        [*expected_rows("orders_with_customers")],
    ),
    "pass_through": (records("flink_kafka_poc_output"), ["a", "b", "c"]),
    "pass_through_at_least_once": (records("flink_kafka_poc_output_at_least_once"), ["a", "b", "c"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def cities(scheduler: Scheduler) -> Iterator[None]:
    file = scheduler.stack.home.root / "examples" / "redis.url"
    file.parent.mkdir(exist_ok=True)
    with redis_server() as url:
        file.write_text(url)
        yield


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> frozenset[str]:
    """The DAGs whose tests this session runs, and the one whose epochs another counts."""
    tests = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    dags = {str(test.callspec.params["dag"]) for test in tests if hasattr(test, "callspec")}
    return frozenset(dags | ({"access_log"} if "epoch_summaries" in dags else set()))


@pytest.fixture(scope="module")
def started(scheduler: Scheduler, cities: None, asked: frozenset[str]) -> Iterator[Scheduler]:
    """All DAGs that are asked for at once, after their tables, topics and records were made.

    Those with a schedule or with records that wake them run by themselves; the others are triggered. Three tasks run
    at once: with eight on one core, one may outlast the 60 s that the profiles of some examples declare.
    """
    servers = scheduler.stack.kafka.bootstrap_servers
    make_ready(scheduler)
    for topic, values in INPUT.items():
        produce(servers, topic, values)
    for key, value in CHANGES:
        produce(servers, "shop.public.orders", [value], key=key)
    # It begins at the end of its topic, so it has seen the end before the records come.
    if "running_counts" in asked:
        scheduler.pause("running_counts", False)
        eventually("the end of the topic is known", lambda: scheduler.heads("running_counts"))
    produce_raw_values(servers, pause=0)
    with scheduler.slots(3):
        for dag in asked - {"access_log"}:
            scheduler.pause(dag, False)
        for dag in asked:
            if dag == "access_log" or (dag in SHIPPED and not by_itself(scheduler, dag)):
                scheduler.trigger(dag)
        yield scheduler


def by_itself(scheduler: Scheduler, dag: str) -> bool:
    return scheduler.call("GET", f"/api/v2/dags/{dag}")["timetable_summary"] is not None


@pytest.mark.parametrize("dag", CHECKS)
def test_a_shipped_dag_writes_what_was_produced_in_one_epoch(started: Scheduler, dag: str) -> None:
    """E1 to E12, C11: each sink is compared with the input; no failed run is on the way."""
    check, expected = CHECKS[dag]

    with suppress(AssertionError):  # the comparison below says what is there instead
        eventually(f"the sinks of {dag} hold it", lambda: check(started) == expected, every=0.5)
    paused = started.call("GET", f"/api/v2/dags/{dag}")["is_paused"]
    started.pause(dag, True)

    runs = started.call("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100")["dag_runs"]
    newest = [(run["run_type"], run["state"], run["end_date"]) for run in runs[-9:]]
    assert check(started) == expected, f"paused by itself: {paused}; newest of {len(runs)} runs: {newest}"
    assert "failed" not in {run["state"] for run in runs}
    if dag not in WITHOUT_PIPELINE | ONE_OF_MANY:
        assert started.committed(dag) == 1


def test_every_shipped_dag_is_among_them() -> None:
    assert {*SHIPPED, "access_log", "epoch_summaries"} == CHECKS.keys()
