"""Example programs, step by step: the input, the commands, and the expected content of the target.

`epochline examples run NAME` performs the steps on the embedded stack; each step can also be typed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochline_examples.redis_server import CITIES
from epochline_examples.steps import Call, Look, Program, Send, Sql
from epochline_examples.topic_programs import TOPIC_PROGRAMS, visits


def _orders(*orders: tuple[int, float, int]) -> Send:
    """Orders, each as user, seconds after midnight, and money."""
    return Send(
        *(
            f'{{"orderId": "{user}-{second:g}", "userId": {user}, "money": {money},'
            f' "createTime": {round((_MIDNIGHT + second) * 1000)}}}'
            for user, second, money in orders
        )
    )


def _raw_values(first: int, last: int) -> Send:
    return Send(*(f'{{"value":"{number}"}}' for number in range(first, last + 1)))


def _joined_order(order: str, customer: int, amount: str) -> str:
    return f'{{"order_id": "{order}", "customer_id": {customer}, "amount": "{amount}"}}'


def _customer(customer: int, name: str) -> str:
    return f'{{"customer_id": {customer}, "name": "{name}"}}'


_JOINED = "SELECT order_id, name, amount FROM examples.orders_with_customers ORDER BY order_id"
_MIDNIGHT = 1_772_323_200  # 2026-03-01T00:00:00Z


_NINE_ORDERS = (
    ("1", "zhangsan", "2018-10-20 15:30", "358.5"),
    ("2", "zhangsan", "2018-10-20 16:30", "131.5"),
    ("3", "lisi", "2018-10-20 16:30", "127.5"),
    ("4", "lisi", "2018-10-20 16:30", "328.5"),
    ("5", "lisi", "2018-10-20 16:30", "432.5"),
    ("6", "zhaoliu", "2018-10-20 22:30", "451.0"),
    ("7", "zhaoliu", "2018-10-20 22:30", "362.0"),
    ("8", "zhaoliu", "2018-10-20 22:30", "364.0"),
    ("9", "zhaoliu", "2018-10-20 22:30", "341.0"),
)

_RAW_VALUES = (
    "SELECT min(value::int), max(value::int), count(*), count(DISTINCT value) AS distinct FROM examples.t_test"
)
_COUNTS = "SELECT word, count FROM examples.t_wordcount ORDER BY word"
_DEMO_COUNTS = "SELECT word, count FROM examples.savepoint_counts ORDER BY word"
_WINDOWS = (
    "SELECT ip, to_char(window_start AT TIME ZONE 'UTC', 'HH24:MI:SS') AS window, count FROM examples.ip_count"
    " UNION ALL SELECT ip, 'too late', count(*) FROM examples.ip_count_late GROUP BY ip ORDER BY 2"
)
_ORDERS = (
    "SELECT user_name, total_count, max_money, min_money FROM examples.window_totals ORDER BY window_start, user_name"
)

_ALL: Sequence[Program] = (
    Program(
        name="word_count",
        shows="Counts continue from the state, and a crash before the commit counts nothing twice (E3).",
        pipeline="word_count",
        topic="word_count",
        steps=(
            Send("hello world", "hello flink"),
            Call("run word_count", killed_at="commit.commit"),
            Look(_COUNTS),
            Call("run word_count"),
            Look(_COUNTS, ("flink", "1"), ("hello", "2"), ("world", "1")),
            Send("hello"),
            Call("run word_count"),
        ),
        result=Look(_COUNTS, ("flink", "1"), ("hello", "3"), ("world", "1")),
    ),
    Program(
        name="orders_with_customers",
        shows="Two sources in one epoch: an order waits in state until its customer is known, and a crash before the"
        " commit joins nothing twice (N7).",
        pipeline="orders_with_customers",
        topic="joined_orders",
        steps=(
            Send(_joined_order("a", 1, "10.50"), _joined_order("b", 2, "7.00")),
            Send(_customer(1, "Ada"), to="joined_customers"),
            Call("run orders_with_customers", killed_at="commit.commit"),
            Look(_JOINED),
            Call("run orders_with_customers"),
            Look(_JOINED, ("a", "Ada", "10.50")),
            Send(_customer(2, "Grace"), to="joined_customers"),
            Call("run orders_with_customers"),
        ),
        result=Look(_JOINED, ("a", "Ada", "10.50"), ("b", "Grace", "7.00")),
    ),
    Program(
        name="savepoint",
        shows="Counts continue from a savepoint, after a restore of state and target (E7).",
        pipeline="savepoint_demo",
        topic="savepoint_demo",
        steps=(
            Send(*["hello world"] * 5),
            Call("run savepoint_demo"),
            Call("savepoint savepoint_demo five --reason before-the-upgrade --yes"),
            Send("hello world"),
            Call("run savepoint_demo"),
            Call("restore savepoint_demo five --reason the-upgrade-went-wrong --yes"),
            Look(_DEMO_COUNTS, ("hello", "5"), ("world", "5")),
            Call("run savepoint_demo", killed_at="commit.commit"),
            Call("run savepoint_demo"),
        ),
        result=Look(_DEMO_COUNTS, ("hello", "6"), ("world", "6")),
    ),
    Program(
        name="raw_value",
        shows="An epoch that fails at 15 leaves nothing visible, however often it is tried; without the fault each"
        " value is there once (E2).",
        pipeline="raw_value",
        topic="flink_kafka",
        sql="raw_value.sql",
        steps=(
            Sql("raw_value_fault.sql"),
            _raw_values(1, 10),
            Call("run raw_value"),
            _raw_values(11, 20),
            Call("run raw_value", fails=True),
            # A command makes one attempt, and the profile tolerates no epoch that fails. Airflow restarts without end.
            Call("resume raw_value --reason once-more --yes"),
            Call("run raw_value", fails=True),
            Look(_RAW_VALUES, ("1", "10", "10", "10")),
            Sql("DROP TRIGGER fault_at_15 ON examples.t_test"),
            Call("resume raw_value --reason the-value-is-mended --yes"),
            Call("run raw_value", killed_at="commit.commit"),
            Call("run raw_value"),
        ),
        result=Look(_RAW_VALUES, ("1", "20", "20", "20")),
    ),
    Program(
        name="restart",
        shows="Numbers continue after the last committed one, although the program dies after every fifth (E8).",
        pipeline="restart_demo",
        topic="restart_demo",
        steps=(
            Send(*map(str, range(1, 21))),
            *[Call("run restart_demo", killed_at="commit.committed")] * 4,
            Call("run restart_demo"),
        ),
        result=Look(
            "SELECT min(number), max(number), count(number), count(DISTINCT number) FROM examples.t_restart",
            ("1", "20", "20", "20"),
        ),
    ),
    Program(
        name="ip_count",
        shows="Visits per address and window of five seconds; a late visit corrects its window, a too late one is kept"
        " in another table (E5).",
        pipeline="ip_count",
        topic="ip_count_source",
        steps=(
            visits(0, 1, 2),
            Call("run ip_count"),
            visits(3, 4),
            Call("run ip_count", killed_at="commit.commit"),
            Call("run ip_count"),
            visits(6, 7),
            Call("run ip_count"),
            Look(_WINDOWS, ("192.168.1.1", "10:00:00", "5")),
            visits(3),
            Call("run ip_count"),
            Look(_WINDOWS, ("192.168.1.1", "10:00:00", "6")),
            visits(20),
            Call("run ip_count"),
            visits(1),
            Call("run ip_count"),
        ),
        result=Look(
            _WINDOWS,
            ("192.168.1.1", "10:00:00", "6"),
            ("192.168.1.1", "10:00:05", "2"),
            ("192.168.1.1", "too late", "1"),
        ),
    ),
    Program(
        name="streaming_sql",
        shows="Streaming SQL: orders per user and window of five seconds, written once, two seconds behind the newest"
        " order (E11).",
        pipeline="order_windows",
        topic="order_windows",
        steps=(
            _orders((1, 0, 10), (1, 2, 40), (1, 4, 25)),
            Call("run order_windows"),
            _orders((1, 6, 5)),
            Call("run order_windows"),
            Look(_ORDERS),
            _orders((1, 7, 5)),
            Call("run order_windows", killed_at="commit.commit"),
            Call("run order_windows"),
            Look(_ORDERS, ("1", "3", "40", "10")),
            _orders((1, 3, 99)),
            Call("run order_windows"),
        ),
        result=Look(_ORDERS, ("1", "3", "40", "10")),
    ),
    Program(
        name="batch_sql",
        shows="Batch SQL: the nine orders summed up by user, in one epoch, by the text of streaming_sql (E10).",
        pipeline="order_totals",
        topic="order_totals",
        steps=(
            Send(*(",".join(order) for order in _NINE_ORDERS)),
            Call("run order_totals", killed_at="commit.commit"),
            Call("run order_totals"),
        ),
        result=Look(
            "SELECT user_name, total_money, max_money, min_money, total_count FROM examples.order_totals"
            " ORDER BY total_money",
            ("zhangsan", "490.0", "358.5", "131.5", "2"),
            ("lisi", "888.5", "432.5", "127.5", "3"),
            ("zhaoliu", "1518.0", "451.0", "341.0", "4"),
        ),
    ),
    Program(
        name="city_lookup",
        shows="Nine ids get the names of their cities by parallel look-ups in Redis (E9).",
        pipeline="city_lookup",
        topic="city_lookup",
        redis=True,
        steps=(
            Send(*map(str, range(1, 10))),
            Call("run city_lookup", killed_at="commit.commit"),
            Call("run city_lookup"),
        ),
        result=Look(
            "SELECT line FROM examples.city_of_id ORDER BY id",
            *((f"{number}>>>{city}",) for number, city in CITIES.items()),
        ),
    ),
    Program(
        name="checkpoint",
        shows="A source says hello once a second; each of four epochs leaves a file, one after a crash (C11).",
        pipeline="checkpoint_demo",
        topic=None,
        steps=(
            Call("run checkpoint_demo"),  # it begins now, so there is nothing to read yet
            *[Call("run checkpoint_demo")] * 2,
            Call("run checkpoint_demo", killed_at="commit.committed"),  # dies between the commit and the file
            Call("run checkpoint_demo"),
            Call("epoch-files checkpoint_demo"),
            Call("epoch-files checkpoint_demo --show 3"),
        ),
        result=Look(
            "SELECT value, count(DISTINCT _epoch) AS epochs, count(*) = count(DISTINCT _offset) AS once"
            " FROM examples.checkpoint_demo GROUP BY value",
            ("hello flink", "4", "True"),
        ),
        files=tuple(f"../../flink/ck_demo/checkpoint_demo/epoch-000000000{number}.zip" for number in (1, 2, 3, 4)),
    ),
    *TOPIC_PROGRAMS,
)

PROGRAMS = {program.name: program for program in _ALL}
"""Every program by its name."""
