"""The example programs through real Spark: counts and windows from topic to topic, and raw values with a fault."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from epochline import Json, KafkaSource, KafkaTopic, Pipeline, Settings
from epochline.config.discovery import find
from epochline.coordinator import Plan, abort
from epochline.declare.names import QUARANTINE
from epochline.errors import PipelinePausedError, SealRefusedError
from epochline.failpoints import FailpointError
from epochline_examples.raw_value import produce
from pipelines.running_counts import FAULT
from tests.armed import armed
from tests.integration import kafka_topics
from tests.integration.kafka_topics import delete_topic, make_topic
from tests.integration.sinks_world import Seen, seen
from tests.integration.spark.conftest import ROOT, Records, Runs, Servers

Window = tuple[str, str, int]
"""Address, second that the window begins with, and count."""


class Publishing(Runs):
    """A pipeline whose topic is on the tests' own broker."""

    def seen(self, isolation: str = "read_committed") -> list[Seen]:
        return seen(self.servers.bootstrap, self.pipeline.topics[0].topic, isolation)

    def read_and_publish(self, records: Records) -> None:
        self.epoch(records)
        self.publish()


Shipped = Callable[..., Publishing]


@pytest.fixture
def shipped(servers: Servers) -> Iterator[Shipped]:
    """A program of ``dags/examples`` under its own topics' names; the topics are created again, with three partitions (E1b)."""
    made: list[str] = []

    def make(program: str, partitions: int = 3, **changed: Any) -> Publishing:
        declared = find(program, ROOT / "dags" / "examples")
        declared = Pipeline.model_validate(dict(declared) | changed)
        for topic in (*declared.source.topics, *(sink.topic for sink in declared.topics)):
            delete_topic(servers.bootstrap, topic)
            made.append(make_topic(servers.bootstrap, topic, partitions))
        return Publishing(servers, declared.model_copy(update={"name": servers.name}))

    yield make
    for topic in made:
        delete_topic(servers.bootstrap, topic)


def counts(records: Sequence[Seen]) -> dict[str, list[int]]:
    """By word, its running counts in the order in which a consumer of its partition sees them."""
    found = defaultdict(list)
    for one in records:
        word, _, count = (one.value or "").partition(":::")
        assert one.key == word
        found[word].append(int(count))
    return found


def test_each_word_is_counted_one_to_n_although_every_fifth_word_throws(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1, E1b, C8: attempts that throw leave nothing behind, and a publisher that fails behind its send repeats nothing."""
    line = shipped("running_counts")
    assert line.planned()[0].epoch is None  # latest: what comes from now on
    lines: list[Records] = [
        {0: [b"hello world"], 1: [b"hello"]}, {2: [b"flink hello world"]}, {0: [b"hello", b"hello world"]},
    ]  # fmt: skip
    seeds, thrown = itertools.count(24), []
    for records in lines:
        line.produce(records)
        planned, who = line.planned()
        committed = None
        while committed is None:
            # Each attempt draws for itself, as it would under Airflow, where its application has another name.
            monkeypatch.setenv(FAULT, f"0.2:{next(seeds)}")
            try:
                committed = line.committed(planned, who)
            except (PySparkException, Py4JJavaError) as error:
                thrown.append(str(error))
                # Anything else would fail again and again.
                assert "出bug了..." in thrown[-1]
        with armed("topic.commit:raise"), pytest.raises(FailpointError):
            line.publish()
        line.publish()

    assert thrown, "no attempt threw: begin with another seed"
    assert counts(line.seen()) == {"hello": [1, 2, 3, 4, 5], "world": [1, 2, 3], "flink": [1]}
    assert len(line.seen("read_uncommitted")) == 2 * len(line.seen())
    kept = dict(line.database.query("SELECT word, count FROM examples.running_counts"))
    assert kept == {"hello": 5, "world": 3, "flink": 1}


def visits(*seconds: int) -> list[bytes]:
    return [f"2019-09-15_10:00:{second:02} 192.168.1.1".encode() for second in seconds]


def windows(records: Sequence[Seen]) -> list[Window]:
    found = []
    for one in records:
        value = json.loads(one.value or "")
        assert json.loads(one.key or "") == {name: value[name] for name in ("ip", "window_start")}
        found.append((value["ip"], value["window_start"][17:19], value["count"]))
    return found


def test_a_window_reaches_the_topic_once_and_a_late_visit_makes_a_second_higher_record(shipped: Shipped) -> None:
    """E5, K19, X21, INV-6: five visits over two epochs and a crash make one count of five; what is too late, none."""
    line = shipped("ip_count_topic", partitions=1)  # one that never has a record would hold the watermark back
    assert line.pipeline.topics[0].transaction_timeout == timedelta(milliseconds=60_000)
    line.epoch({0: visits(0, 1, 2)})
    line.produce({0: visits(3, 4)})
    line.crash()
    line.resume()
    line.epoch()
    line.publish()
    assert line.seen() == []

    line.read_and_publish({0: visits(5)})
    assert windows(line.seen()) == [("192.168.1.1", "00", 5)]

    line.read_and_publish({0: visits(3)})
    assert windows(line.seen()) == [("192.168.1.1", "00", 5), ("192.168.1.1", "00", 6)]

    line.epoch({0: visits(20)})
    line.read_and_publish({0: visits(1)})
    assert sorted(windows(line.seen())) == [
        ("192.168.1.1", "00", 5), ("192.168.1.1", "00", 6), ("192.168.1.1", "05", 1),
    ]  # fmt: skip
    assert windows(line.seen("read_uncommitted")) == windows(line.seen())
    assert line.database.query("SELECT count(*) FROM examples.ip_count_topic_late") == [(1,)]


def test_a_consumer_gets_the_result_that_is_taken_back_before_the_new_one(shipped: Shipped) -> None:
    """N5: once each and in one partition, although the publisher was killed behind its send."""
    declared = find("ip_count_topic", ROOT / "dags" / "examples")
    out, late = declared.sinks
    assert isinstance(out, KafkaTopic)
    assert declared.windows is not None
    changes = out.model_copy(update={"value": Json(columns={**out.record, "added": "boolean"}), "order_by": ("added",)})
    windowed = declared.windows.model_copy(update={"retractions": "added"})
    line = shipped("ip_count_topic", partitions=1, windows=windowed, sinks=(changes, late))
    line.read_and_publish({0: visits(0, 1, 5)})

    line.epoch({0: visits(3)})
    with armed("topic.committed:raise"), pytest.raises(FailpointError):
        line.publish()
    line.publish()

    values = [json.loads(one.value or "") for one in line.seen()]
    assert [(value["added"], value["count"]) for value in values] == [(True, 2), (False, 2), (True, 3)]
    assert len({one.key for one in line.seen()}) == 1
    assert len(line.seen("read_uncommitted")) == 3


EXAMPLES = ROOT / "include" / "epochline_examples"
TWENTY = [str(number) for number in range(1, 21)]
TEN = TWENTY[:10]


class Program(Runs):
    """The declared pipeline on a topic of its own, ten records to an epoch, as Airflow's tasks would run it."""

    def __init__(self, servers: Servers, topic: str) -> None:
        source = KafkaSource(topics=topic, records_per_epoch=10)
        # A name of its own: the consumer group of another test's ledger would show epochs that this one lacks.
        declared = find("raw_value", ROOT / "dags" / "examples")
        pipeline = declared.model_copy(update={"name": servers.name, "source": source})
        servers.database.query((EXAMPLES / "raw_value.sql").read_text())
        super().__init__(servers, pipeline, create=False)

    def values(self) -> list[str]:
        found = self.database.query("SELECT value FROM examples.t_test ORDER BY value::int, id")
        return [value for (value,) in found]

    def head(self) -> int:
        return int(self.database.query("SELECT next_offset FROM epochline.heads")[0][0])


def shown(planned: Plan) -> list[str]:
    return [str(one.range) for one in planned.ranges]


def produce_as(shape: str) -> Callable[..., None]:
    """Twenty numbers written in another shape than the producer gives them."""

    def send(bootstrap: str, *, pause: float, topic: str) -> None:
        kafka_topics.produce(bootstrap, topic, [(shape % number).encode() for number in TWENTY])

    return send


SHAPES = {"object": produce, "bare": produce_as("%s"), "quoted": produce_as('"%s"')}


@pytest.fixture(params=["object"])
def program(request: pytest.FixtureRequest, servers: Servers, topic_name: str) -> Program:
    """Its first epoch is committed, and the statement that makes the fault has run."""
    kafka_topics.make_topic(servers.bootstrap, topic_name)
    SHAPES[request.param](servers.bootstrap, pause=0, topic=topic_name)
    one = Program(servers, topic_name)
    planned, who = one.planned()
    assert shown(planned) == ["[0, 10)"]
    one.committed(planned, who)
    assert (one.values(), one.head()) == (TEN, 10)
    one.database.query((EXAMPLES / "raw_value_fault.sql").read_text())
    return one


@pytest.mark.parametrize("program", SHAPES, indirect=True)
def test_a_fault_at_fifteen_rolls_back_what_was_written_with_it_until_it_is_gone(program: Program) -> None:
    """E2, X2, K3: 1..10 stay; 11..14 go with 15 at every retry; with the fault off 1..20 are there once each.

    X2: in each shape. The settings are the declared ones: the second plan waits for the minimum pause of a second.
    """
    database = program.database
    planned, who = program.planned()
    assert shown(planned) == ["[10, 20)"]

    attempts = "SELECT attempt, rows_staged FROM epochline.attempts WHERE epoch_id = 2 ORDER BY attempt"
    for attempt in (1, 2, 3):
        with pytest.raises(SealRefusedError, match="for examples.t_test: DivisionByZero"):
            program.sealed(planned, who)
        assert database.query(attempts) == [(number, 10) for number in range(1, attempt + 1)]
        assert (program.values(), program.head()) == (TEN, 10)

    database.query("DROP TRIGGER fault_at_15 ON examples.t_test")
    program.committed(planned, who)

    assert (program.values(), program.head()) == (TWENTY, 20)
    counts = "SELECT count(DISTINCT id), count(insert_time), count(DISTINCT insert_time) FROM examples.t_test"
    assert database.query(counts) == [(20, 20, 2)]
    assert database.query(
        "SELECT later.planned_at - earlier.committed_at >= interval '1 second'"
        " FROM epochline.epochs AS earlier JOIN epochline.epochs AS later ON later.epoch_id = 2"
        " WHERE earlier.epoch_id = 1"
    ) == [(True,)]


@pytest.mark.parametrize("parallelism", [1, 4])
def test_fifteen_set_aside_is_quarantined_and_the_other_nineteen_are_there(program: Program, parallelism: int) -> None:
    """E2, K22: after an aborted epoch the declaration handles the bad record; the same with one Spark task and four.

    The declared tolerance of 0 has paused the pipeline by then (K11), as it is to: an operator mends it and resumes.
    """
    planned, who = program.planned()
    with pytest.raises(SealRefusedError):
        program.sealed(planned, who)
    abort(program.ledger, program.name, 2, who, reason="test")
    handling = {"parse": "all_but_15:parse", "bad_records": "quarantine", "settings": Settings(parallelism=parallelism)}
    program.pipeline = program.pipeline.model_copy(update=handling)

    with pytest.raises(PipelinePausedError):
        program.planned()
    program.resume()
    planned, who = program.planned()
    assert shown(planned) == ["[10, 20)"]
    program.committed(planned, who)

    assert program.values() == [value for value in TWENTY if value != "15"]
    assert program.database.query('SELECT "offset", reason FROM epochline.quarantine') == [(14, "15 is set aside")]
    parts = "epochline.part JOIN epochline.attempt USING (attempt_id)"
    tasks = f"SELECT count(*) FROM {parts} WHERE epoch_id = 3 AND sink = %s"
    assert program.database.query(tasks, QUARANTINE) == [(parallelism,)]
