"""Example programs that write to a topic, step by step; see `epochline_examples.programs`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from epochline_examples.steps import Call, Look, Program, Read, Send

_SUMS = (
    "SELECT count(*) AS rows, sum(indicate) AS step,"
    " (SELECT sum(indicate) FROM examples.test_two_step_compare) AS compare FROM examples.test_two_step"
)
_READ_ON = (
    "SELECT ip, to_char(window_start AT TIME ZONE 'UTC', 'HH24:MI:SS') AS window, count FROM examples.ip_count_read_on"
)


def _result(second: int, count: int) -> str:
    start, end = (f"2019-09-15T10:00:{one:02}.000000Z" for one in (second, second + 5))
    return f'{{"ip":"192.168.1.1","window_start":"{start}","window_end":"{end}","count":{count}}}'


def _tuples(count: int) -> Send:
    return Send(
        *(
            json.dumps({"key1": f"a{number}", "key2": f"b{number % 3}", "key3": f"c{number % 2}", "indicate": number})
            for number in range(count)
        )
    )


def visits(*seconds: int) -> Send:
    """Visits of one address, at the given seconds after ten o'clock."""
    return Send(*(f"2019-09-15_10:00:{second:02} 192.168.1.1" for second in seconds))


TOPIC_PROGRAMS: Sequence[Program] = (
    Program(
        name="running_counts",
        shows="One running count for each incoming word, from topic to topic, although words raise errors (E1).",
        pipeline="running_counts",
        topic="flink_kafka",
        steps=(
            Call("run running_counts"),  # begins at the end of the topic
            Send("hello world hello"),
            Call("run running_counts", fault="0.2:1"),
            Read("flink_kafka2"),
            Call("run running_counts", killed_at="topic.commit"),
            Read("flink_kafka2"),
            Call("publish running_counts"),
            Read("flink_kafka2", "hello:::1", "hello:::2", "world:::1"),
            Send("hello flink"),
            Call("run running_counts"),
        ),
        result=Read("flink_kafka2", *(f"hello:::{n}" for n in (1, 2, 3)), "world:::1", "flink:::1"),
    ),
    Program(
        name="pass_through",
        shows="Bytes from topic to topic; a publisher that is killed after its send repeats nothing (E12).",
        pipeline="pass_through",
        topic="flink_kafka_poc_input",
        steps=(
            Send("a", "b", "c"),
            Call("run pass_through", killed_at="topic.committed"),
            Call("publish pass_through"),
        ),
        result=Read("flink_kafka_poc_output", "a", "b", "c"),
    ),
    Program(
        name="pass_through_at_least_once",
        shows="The same at least once: a publisher that is killed after its send repeats records (E12, K16).",
        pipeline="pass_through_at_least_once",
        topic="flink_kafka_poc_input",
        steps=(
            Send("a", "b", "c"),
            Call("run pass_through_at_least_once", killed_at="topic.sent"),
            Call("publish pass_through_at_least_once"),
        ),
        result=Read("flink_kafka_poc_output_at_least_once", *"aabbcc"),
    ),
    Program(
        name="sink_comparison",
        shows="A topic, a table of rows and a table of sums hold the same after kills between them (E6).",
        pipeline="sink_comparison",
        topic="flink_input",
        steps=(
            _tuples(10),
            Call("run sink_comparison", killed_at="topic.commit"),
            Look(_SUMS, ("10", "45", "45")),
            Call("publish sink_comparison"),
            _tuples(10),
            Call("run sink_comparison", killed_at="commit.commit"),
            Call("run sink_comparison"),
            Call("verify-topic flink_output --key-unique"),
        ),
        result=Look(_SUMS, ("20", "90", "90")),
    ),
    Program(
        name="ip_count_topic",
        shows="Windows are written to a topic, which a second pipeline reads into a table; a late visit adds a second"
        " record of its window with a higher count (E5, Q7).",
        pipeline="ip_count_topic",
        topic="ip_count_source",
        steps=(
            visits(0, 1, 2, 3, 4),
            Call("run ip_count_topic"),
            visits(5),
            Call("run ip_count_topic", killed_at="topic.commit"),
            Call("run ip_count_read_on"),
            Look(_READ_ON),
            Call("publish ip_count_topic"),
            Call("run ip_count_read_on", killed_at="commit.commit"),
            Call("run ip_count_read_on"),
            Look(_READ_ON, ("192.168.1.1", "10:00:00", "5")),
            visits(3),
            Call("run ip_count_topic"),
            Read("ip_count_sink", _result(0, 5), _result(0, 6)),
            Call("run ip_count_read_on"),
        ),
        result=Look(_READ_ON, ("192.168.1.1", "10:00:00", "6")),
    ),
)
