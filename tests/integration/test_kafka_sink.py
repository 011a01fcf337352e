"""A topic as a sink: what a read_committed consumer sees of it, whatever is killed, lost or done twice (P9 to P13)."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg2
import pytest

from epochline import FixedDelay, Json, KafkaSource, KafkaTopic, PostgresTable, Settings, Text
from epochline.coordinator import PlanOutcome, publish
from epochline.declare.topic import CONTROL_TOPIC
from epochline.errors import ActionRefusedError, OutboxTooLargeError, SinkAheadError, SinkError, SinkUnavailableError
from epochline.local.stack import Stack
from epochline.operations.replay import plan_replay
from epochline.postgres.ledger import receipts
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.sinks import sinks_by
from tests.armed import armed
from tests.databases import copy_database
from tests.integration.kafka_topics import delete_topic
from tests.integration.published_queries import queries
from tests.integration.sinks_world import SinksPipeline, in_process, new_world, values

OUT = KafkaTopic(topic="out", value=Text())
NewWorld = Callable[..., SinksPipeline]
"""Makes a pipeline with these sinks."""


@pytest.fixture
def new(postgres_dsn: str, kafka_bootstrap: str) -> NewWorld:
    return partial(new_world, postgres_dsn, kafka_bootstrap)


@pytest.fixture
def world(new: NewWorld) -> SinksPipeline:
    return new(OUT)


def name_of(world: SinksPipeline) -> str:
    return world.it.pipeline.topics[0].name


def test_an_epoch_is_in_the_topic_once_it_is_published_and_not_before(world: SinksPipeline) -> None:
    """P9, N9: three rows pre-committed are 0 to read_committed, after the commit and publish they are 3."""
    world.produce("a", "b", "c")
    world.it.sealed()
    assert world.seen() == world.seen("read_uncommitted") == []

    world.it.asked_to_plan()  # commits the sealed one; there is nothing else to read
    assert world.outbox() == 3
    assert world.seen() == []

    (published,) = world.it.publish()

    assert (published.epoch_id, published.rows) == (1, 3)
    assert values(world.seen()) == ["a", "b", "c"]
    assert world.outbox() == 0
    assert world.receipts() == [(1, name_of(world), "SHOWN"), (1, "lines", "SHOWN")]


def test_what_a_killed_run_committed_is_published_by_the_next_with_nothing_to_read(world: SinksPipeline) -> None:
    """A run killed after its commit, with the topic idle afterwards (P11); the receipt is there before the send (P10)."""
    world.epoch("a", "b", "c")
    states = [world.receipts()[0][2]]
    world.killed_at("publish.sink.commit")
    states.append(world.receipts()[0][2])
    assert world.seen() == []

    world.it.publish()

    assert values(world.seen()) == ["a", "b", "c"]
    assert [*states, world.receipts()[0][2]] == ["DUE", "OPEN", "SHOWN"]


def test_epochs_are_published_in_their_order_and_the_order_of_each_key_is_kept(new: NewWorld) -> None:
    """I9: one Kafka transaction per epoch (P12); a key's records stay in their order."""
    keyed = KafkaTopic(topic="out", value=Json(columns={"n": "bigint"}), key="k", columns={"k": "text"})
    world = new(keyed, table=False, parse=Json(columns={"k": "text", "n": "bigint"}))
    for numbers in (range(60), range(60, 120), range(120, 180)):
        keys = [f"k{n % 7}" for n in numbers]
        world.epoch(*(f'{{"k": "{key}", "n": {n}}}' for key, n in zip(keys, numbers, strict=True)), keys=keys)

    assert [one.epoch_id for one in world.it.publish()] == [1, 2, 3]

    by_key: dict[str | None, list[str | None]] = {}
    for one in world.seen():
        by_key.setdefault(one.key, []).append(one.value)
    assert by_key == {f"k{k}": [f'{{"n":{n}}}' for n in range(180) if n % 7 == k] for k in range(7)}


def test_a_ledger_set_back_between_commit_and_publish_stops_too(world: SinksPipeline, stack: Stack) -> None:
    admin, name = stack.postgres.superuser_dsn, world.it.dsn.rpartition("/")[2].partition("?")[0]
    world.epoch("a")
    copy_database(admin, name, f"{name}_backup")
    world.it.publish()
    world.epoch("b")
    world.it.publish()
    copy_database(admin, f"{name}_backup", name)

    with pytest.raises(SinkAheadError, match="went back in time"):
        world.it.publish()

    assert values(world.seen()) == ["a", "b"]


def test_a_control_topic_that_lost_its_markers_stops(world: SinksPipeline) -> None:
    world.epoch("a")
    world.it.publish()
    delete_topic(world.bootstrap, CONTROL_TOPIC)
    world.produce("b")

    with pytest.raises(SinkError, match="epoch 1 is in the topic, but the control topic holds no marker"):
        world.it.epoch()


def test_a_topic_that_the_pipeline_reads_by_another_connection_to_the_cluster_is_refused_before_anything_is_planned(
    world: SinksPipeline, postgres_dsn: str
) -> None:
    """INV-9: what a declaration cannot know: two connections lead to one cluster, and a pattern matches a sink's topic."""
    source = KafkaSource(pattern="sinks-.*", connection="the_same_by_another_name")
    pipeline = world.it.pipeline.model_copy(update={"name": "loop", "source": source})
    loop = in_process(postgres_dsn, world.bootstrap, pipeline).create()

    for plan in (loop.asked_to_plan, loop.preview):
        with pytest.raises(SinkError, match="the_same_by_another_name and epochline_kafka lead to one cluster"):
            plan()

    assert loop.sql("SELECT count(*) FROM epochline.epochs") == [(0,)]


def test_a_pattern_reads_no_markers_and_a_pipeline_that_read_them_goes_on_without(
    world: SinksPipeline, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-9: an earlier version gave them to parse as records."""
    world.epoch("a")
    world.it.publish()
    source = KafkaSource(pattern=rf"epochline\..*|{world.source}", startup="earliest")
    sinks = (PostgresTable(table="all_lines", columns={"value": "text"}),)
    pipeline = world.it.pipeline.model_copy(update={"name": "all", "source": source, "sinks": sinks})
    reader = in_process(postgres_dsn, world.bootstrap, pipeline).create()
    with monkeypatch.context() as before:
        for name in ("reads", "keeps"):
            before.setattr(KafkaSource, name, lambda _, topic: topic in (CONTROL_TOPIC, world.source))
        reader.epoch()
    assert len(reader.sql("SELECT 1 FROM all_lines")) > 1
    world.epoch("b")
    world.it.publish()

    reader.epoch()

    assert reader.sql("SELECT DISTINCT _topic FROM all_lines WHERE _epoch = 2") == [(world.source,)]


def test_backlog_waits_in_kafka_when_too_many_epochs_are_unpublished(new: NewWorld) -> None:
    """``max_unpublished_epochs`` stops planning; publishing lets it go on."""
    world = new(OUT.model_copy(update={"max_unpublished_epochs": 2}))
    for value in ("a", "b"):
        world.epoch(value)
    world.produce("c")

    planned, _ = world.it.asked_to_plan()

    assert planned.outcome is PlanOutcome.SINKS_FULL
    assert f"{name_of(world)} has 2 epochs still to show" in planned.notes[0]
    world.it.publish()
    world.it.epoch()
    world.it.publish()
    assert values(world.seen()) == ["a", "b", "c"]


def test_an_epoch_too_large_for_its_transaction_is_refused_at_the_seal(new: NewWorld) -> None:
    """At most half the transaction time-out at the measured rate; the message names the limit to lower."""
    world = new(OUT.model_copy(update={"transaction_timeout": timedelta(seconds=10)}))
    world.epoch(*map(str, range(2000)))
    world.it.publish()
    # As slow as 100 rows/s, as if it had been measured.
    world.it.sql("ALTER TABLE epochline.receipt DISABLE TRIGGER shown_is_written_once")
    world.it.sql("UPDATE epochline.receipt SET seconds = 20 WHERE sink LIKE 'kafka:%%'")
    world.produce(*map(str, range(600)))

    with pytest.raises(OutboxTooLargeError, match=r"600 rows .* at 100 rows/s \(as measured\).*records_per_epoch"):
        world.it.epoch()

    assert len(world.seen()) == 2000


@pytest.mark.parametrize("place", ["topic.record@2", "topic.commit"], ids=["between two reads", "after the last read"])
def test_a_kafka_that_takes_its_time_does_not_cost_the_outbox_its_session(
    world: SinksPipeline, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """P11: who holds locks may not stand still for long; who reads an outbox holds none."""
    monkeypatch.setattr(receipts, "_FETCHED_AT_ONCE", 1)
    world.epoch("a", "b", "c")
    monkeypatch.setattr("epochline.postgres.ledger.transactions._idle_seconds", lambda _: 3)

    with armed(f"{place}:sleep:5"):
        world.it.publish()

    assert values(world.seen("read_uncommitted")) == ["a", "b", "c"]
    assert {state for _, _, state in world.receipts()} == {"SHOWN"}


def test_the_measured_rate_is_that_of_sending_alone(world: SinksPipeline) -> None:
    """What fence and marker wait for, and an epoch that was found there already, say nothing of the next one."""
    world.epoch("a", "b")
    with armed("topic.fence:sleep:3"):
        world.it.publish()
    world.epoch("c")
    world.killed_at("topic.committed")
    world.it.publish()

    took = world.it.sql("SELECT seconds FROM epochline.receipts WHERE sink LIKE 'kafka:%%' ORDER BY epoch_id")
    assert took == [(pytest.approx(1.5, abs=1.5),), (None,)]


def test_an_epoch_that_its_time_out_was_too_short_for_is_sent_with_a_longer_one(new: NewWorld) -> None:
    """X3, K17: the declaration of now says how long a transaction may take, also for what is committed already."""
    world = new(OUT.model_copy(update={"transaction_timeout": timedelta(seconds=1)}))
    world.epoch("a", "b")
    too_short = pytest.raises(SinkUnavailableError, match="Raise the topic.s transaction_timeout")
    with armed("topic.record@1:sleep:1.2"), too_short:
        world.it.publish()
    out, *others = world.it.pipeline.sinks
    longer = out.model_copy(update={"transaction_timeout": timedelta(minutes=1)})
    world.it.pipeline = world.it.pipeline.model_copy(update={"sinks": (longer, *others)})

    with armed("topic.record@1:sleep:1.2"):
        world.it.publish()

    assert values(world.seen()) == ["a", "b"]


def test_what_is_due_in_a_topic_that_is_declared_no_more_is_said_and_still_shown(world: SinksPipeline) -> None:
    """INV-9: its DAG has no task `publish` any more."""
    world.epoch("a")
    name, (_, *others) = name_of(world), world.it.pipeline.sinks
    world.it.pipeline = world.it.pipeline.model_copy(update={"sinks": tuple(others)})
    world.produce("b")

    planned, _ = world.it.asked_to_plan()

    assert any(f"{name} was removed from the declaration with 1 epochs unpublished" in one for one in planned.notes)
    world.it.publish()
    assert values(world.seen()) == ["a"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"semantics": "at_least_once"}, "waives INV-5", id="at least once"),
        pytest.param(
            {"transaction_timeout": timedelta(seconds=5)},
            "transaction_timeout is 5 s, the restart strategy may wait 30 s",
            id="a time-out below what the strategy may take",
        ),
    ],
)  # fmt: skip
def test_a_plan_says_what_a_declared_topic_gives_up(new: NewWorld, changed: dict[str, Any], said: str) -> None:
    """K16, K17, X3: both are allowed, and every run that plans says what they cost."""
    restart = FixedDelay(attempts=3, delay=timedelta(seconds=10))
    world = new(OUT.model_copy(update=changed), settings=Settings(restart=restart))
    world.produce("a")

    planned, _ = world.it.asked_to_plan()

    (note,) = planned.notes
    assert note.startswith(name_of(world))
    assert said in note


def test_an_outbox_that_somebody_changed_is_not_sent(world: SinksPipeline) -> None:
    world.epoch("a", "b")
    (box,) = world.it.pipeline.outboxes
    schema, table = box.table.split(".")
    world.it.sql(f"""DELETE FROM "{schema}"."{table}" WHERE value = 'a'""")

    with pytest.raises(SinkError, match="holds 1 rows of epoch 1 .*, but 2 were committed"):
        world.it.publish()

    assert world.seen() == []


def test_a_publish_that_has_no_settings_of_its_sinks_connection_fails(world: SinksPipeline) -> None:
    world.epoch("a")
    settings: dict[str, dict[str, str]] = {}

    with pytest.raises(KeyError):
        publish(PostgresLedger(world.it.dsn, sink_factory=sinks_by(settings.__getitem__)), world.it.pipeline)


def test_headers_partition_and_tombstones_arrive(new: NewWorld) -> None:
    columns = {"k": "text", "t": "text", "p": "integer"}
    placed: dict[str, Any] = {"key": "k", "headers": {"trace": "t"}, "partition": "p", "columns": columns}
    topic = KafkaTopic(topic="out", value=Text(column="v"), **placed)
    world = new(topic, table=False, parse=Json(columns={"v": "text", **columns}))
    more = '{"v": null, "k": "b", "t": null, "p": 0}', '{"v": "", "k": null, "p": 1}'
    world.epoch('{"v": "x", "k": "a", "t": "1", "p": 1}', *more)
    world.it.publish()

    assert {(one.partition, one.key, one.value, one.headers) for one in world.seen()} == {
        (1, "a", "x", (("trace", b"1"),)), (0, "b", None, (("trace", None),)), (1, None, "", (("trace", None),)),
    }  # fmt: skip


def test_the_docs_show_what_is_not_shown_yet_and_by_whom(world: SinksPipeline) -> None:
    """U7: the queries of docs/queries.sql, before and after a publish."""
    world.epoch("a", "b")
    name, asked_for = name_of(world), ("what_is_not_shown_yet", "which_sinks_show_an_epoch")
    waiting, shown = (queries()[one].rstrip().rstrip(";") for one in asked_for)
    asked = f"SELECT sink, epoch_id, state, rows FROM ({waiting}) w"
    assert world.it.sql(asked) == [(name, 1, "DUE", 2)]

    world.it.publish()

    assert world.it.sql(asked) == []
    assert world.it.sql(f"SELECT sink, state, rows FROM ({shown}) s") == [(name, "SHOWN", 2), ("lines", "SHOWN", 2)]
    with pytest.raises(psycopg2.errors.IntegrityConstraintViolation, match="receipt is written once"):
        world.it.sql("UPDATE epochline.receipt SET shown_at = now()")


def test_what_a_topic_was_given_is_not_taken_back(world: SinksPipeline) -> None:
    world.epoch("a")

    with pytest.raises(ActionRefusedError, match="takes back nothing of what it was given"):
        plan_replay(world.it.subject, 1, Run(dag_id="operator", run_id="ada", host="here"))
