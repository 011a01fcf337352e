"""The example programs, step by step: what is sent, which commands are run, what is in the target then.

`epochline examples run NAME` goes through the steps on the embedded stack; each is a command that anybody can type.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochline_examples.steps import Call, Look, Program, Send
from epochline_examples.topic_programs import TOPIC_PROGRAMS, visits


def _orders(*orders: tuple[int, float, int]) -> Send:
    """Orders of a user, so many seconds after midnight, of so much money."""
    return Send(
        *(
            f'{{"orderId": "{user}-{second:g}", "userId": {user}, "money": {money},'
            f' "createTime": {round((_MIDNIGHT + second) * 1000)}}}'
            for user, second, money in orders
        )
    )


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

_CITIES = ("beijing", "shanghai", "guangzhou", "shenzhen", "hangzhou", "wuhan", "chengdu", "tianjin", "chongqing")

_COUNTS = "SELECT word, count FROM t_wordcount ORDER BY word"
_WINDOWS = (
    "SELECT ip, to_char(window_start AT TIME ZONE 'UTC', 'HH24:MI:SS') AS window, count FROM ip_count"
    " UNION ALL SELECT ip, 'too late', count(*) FROM ip_count_late GROUP BY ip ORDER BY 2"
)
_ORDERS = "SELECT user_id, orders, max_money, min_money FROM order_windows ORDER BY window_start, user_id"

_ALL: Sequence[Program] = (
    Program(
        name="word_count",
        shows="Words are counted on from the state, and a crash before the commit counts nothing twice (E3).",
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
        name="savepoint",
        shows="Counts go on from a savepoint, with the target put back to it (E7).",
        pipeline="word_count",
        topic="word_count",
        steps=(
            Send(*["hello world"] * 5),
            Call("run word_count"),
            Call("savepoint word_count five --reason before-the-upgrade --yes"),
            Send("hello world"),
            Call("run word_count"),
            Call("restore word_count five --reason the-upgrade-went-wrong --yes"),
            Look(_COUNTS, ("hello", "5"), ("world", "5")),
            Call("run word_count", killed_at="commit.commit"),
            Call("run word_count"),
        ),
        result=Look(_COUNTS, ("hello", "6"), ("world", "6")),
    ),
    Program(
        name="restart",
        shows="Numbers go on behind the last committed one, although the program dies after every fifth (E8).",
        pipeline="restart_demo",
        topic="restart_demo",
        steps=(
            Send(*map(str, range(1, 21))),
            *[Call("run restart_demo", killed_at="commit.committed")] * 4,
            Call("run restart_demo"),
        ),
        result=Look(
            "SELECT min(number), max(number), count(number), count(DISTINCT number) FROM t_restart",
            ("1", "20", "20", "20"),
        ),
    ),
    Program(
        name="ip_count",
        shows="Visits per address and window of five seconds; a late one corrects its window, a later one is kept"
        " aside (E5).",
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
        shows="Orders per user and window of five seconds, given out once, two seconds behind the newest order (E11).",
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
        shows="The nine orders summed up by user in SQL, in one epoch (E10).",
        pipeline="order_totals",
        topic="order_totals",
        steps=(
            Send(*(",".join(order) for order in _NINE_ORDERS)),
            Call("run order_totals", killed_at="commit.commit"),
            Call("run order_totals"),
        ),
        result=Look(
            "SELECT user_name, total_money, max_money, min_money, total_count FROM order_totals ORDER BY total_money",
            ("zhangsan", "490.0", "358.5", "131.5", "2"),
            ("lisi", "888.5", "432.5", "127.5", "3"),
            ("zhaoliu", "1518.0", "451.0", "341.0", "4"),
        ),
    ),
    Program(
        name="city_lookup",
        shows="Nine ids get the names of their cities, which are looked up in another table, all at a time (E9).",
        pipeline="city_lookup",
        topic="city_lookup",
        sql="city_lookup.sql",
        service="city_lookup",
        steps=(
            Send(*map(str, range(1, 10))),
            Call("run city_lookup", killed_at="commit.commit"),
            Call("run city_lookup"),
        ),
        result=Look(
            "SELECT id || '>>>' || city AS line FROM city_of_id ORDER BY id",
            *((f"{number}>>>{city}",) for number, city in enumerate(_CITIES, 1)),
        ),
    ),
    Program(
        name="checkpoint",
        shows="Each of three epochs leaves a file with its number, its offsets and the state (C11).",
        pipeline="word_count",
        topic="word_count",
        steps=tuple(
            step
            for number in (1, 2, 3)
            for step in (
                Send("hello flink"),
                Call("run word_count"),
                Call(f"savepoint word_count epoch-{number} --reason every-epoch --yes"),
                Call(f"savepoint-export word_count epoch-{number} {{folder}}/epoch-{number}.zip"),
            )
        ),
        result=Look(_COUNTS, ("flink", "3"), ("hello", "3")),
        files=("epoch-1.zip", "epoch-2.zip", "epoch-3.zip"),
    ),
    *TOPIC_PROGRAMS,
)

PROGRAMS = {program.name: program for program in _ALL}
"""Every program by its name."""
