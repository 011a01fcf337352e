"""What a changed declaration means for the next epoch."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import pytest

from epochline import FixedDelay, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Settings, StateTable
from epochline.declare.parsers import Json, Text
from epochline.protocol.changes import Effect, as_last_written, changes

COLUMNS = {"id": "bigint", "name": "text"}

Stored = Mapping[str, Any]


def stored(*sinks: PostgresTable | KafkaTopic, **changed: Any) -> Stored:
    table = PostgresTable(table="people", columns=COLUMNS)
    declared = {"source": KafkaSource(topics="people"), "parse": Json(columns=COLUMNS)} | changed
    return dict(json.loads(Pipeline(name="people", sinks=sinks or [table], **declared).stored()))


def test_a_change_is_said_in_words() -> None:
    """No JSON, no ISO duration and no Python in front of a person."""
    before = stored(source=KafkaSource(topics="people", records_per_epoch=1_000))
    now = stored(
        source=KafkaSource(topics=["people", "others"], records_per_epoch=2_000),
        settings=Settings(minimum_pause=timedelta(minutes=3, seconds=20), restart=FixedDelay(attempts=3)),
        parse=Json(columns={**COLUMNS, "age": "int"}),
    )

    said = [str(one) for one in changes(before, now)]

    assert "source.records_per_epoch 1,000 → 2,000" in said
    assert "source.topics people → people, others" in said
    assert any("minimum_pause 3 min 20 s" in one for one in said)
    assert any("attempts 3" in one for one in said)
    assert not [one for one in said if set(one) & set("{}[]'\"") or "None" in one or "PT" in one]


def narrow(table: str) -> PostgresTable:
    return PostgresTable(table=table, columns={"id": "bigint"})


def upsert(key: str) -> PostgresTable:
    return PostgresTable(table="people", mode="upsert", columns=COLUMNS, key=key)


def topic(semantics: Literal["exactly_once", "at_least_once"] = "exactly_once") -> KafkaTopic:
    return KafkaTopic(topic="sent", value=Json(columns={"id": "bigint"}), semantics=semantics)


PLAIN, NARROW, OTHERS = stored(), stored(narrow("people")), stored(narrow("others"))
UPSERT = stored(upsert("id"))
TIMED = stored(PostgresTable(table="people", columns=COLUMNS, insert_time="inserted_at"))
UNIQUE = stored(PostgresTable(table="people", columns=COLUMNS, key="id", repeats="skip"))
LIMITED = KafkaSource(topics="people", records_per_epoch=7)
AT_LEAST_ONCE, EXACTLY_ONCE = stored(topic("at_least_once")), stored(topic())


def test_a_topic_that_was_sent_to_at_least_once_cannot_become_exactly_once() -> None:
    """P11: its epochs have no marker, so nobody knows which ones are there; the other way round loses nothing."""
    (refused,) = changes(AT_LEAST_ONCE, EXACTLY_ONCE)
    (allowed,) = changes(EXACTLY_ONCE, AT_LEAST_ONCE)

    assert (refused.field, refused.effect) == ("sinks.kafka:sent.semantics", Effect.REFUSED)
    assert "another topic" in refused.advice
    assert allowed.effect is Effect.NEXT_EPOCH


def test_two_sinks_of_other_names_have_other_transactional_ids() -> None:
    """P13: a producer that begins with an id fences the id's former producer; dots are allowed in both names."""
    ids = {KafkaTopic(topic=of, value=Text()).transactional_id(name) for name, of in (("a.b", "c"), ("a", "b.c"))}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("before", "now", "field", "effect"),
    [
        pytest.param(PLAIN, stored(settings=Settings(timeout=5)), "settings", Effect.NEXT_EPOCH, id="settings"),
        pytest.param(PLAIN, stored(source=LIMITED), "source.records_per_epoch", Effect.NEXT_EPOCH, id="record limit"),
        pytest.param(PLAIN, NARROW, "sinks.people.columns.name", Effect.NEXT_EPOCH, id="column gone"),
        pytest.param(NARROW, PLAIN, "sinks.people.columns.name", Effect.MIGRATION, id="column added"),
        pytest.param(PLAIN, OTHERS, "sinks.others", Effect.MIGRATION, id="table added"),
        pytest.param(UPSERT, stored(upsert("name")), "sinks.people.key", Effect.REFUSED, id="key"),
        pytest.param(PLAIN, UNIQUE, "sinks.people.key", Effect.MIGRATION, id="unique key of an append target"),
        pytest.param(PLAIN, TIMED, "sinks.people.insert_time", Effect.MIGRATION, id="insert time"),
        pytest.param(PLAIN, UPSERT, "sinks.people.mode", Effect.REFUSED, id="mode"),
    ],
)
def test_each_change_is_reported_with_its_effect(before: Stored, now: Stored, field: str, effect: Effect) -> None:
    assert changes(before, before) == changes(now, now) == []
    assert {one.field: one.effect for one in changes(before, now)}[field] is effect


def refused(before: Stored, now: Stored) -> set[str]:
    return {one.field for one in changes(before, now) if one.effect is Effect.REFUSED}


@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_table_is_held_against_what_it_was_last_written_with_however_long_ago(between: int) -> None:
    """Its rows are still there, and mean what they meant."""
    history = [*[OTHERS] * between, UPSERT, PLAIN]

    written = as_last_written(history[0], history, PLAIN)

    assert refused(written, PLAIN) == {"sinks.people.mode", "sinks.people.key"}
    assert as_last_written(history[0], history, UPSERT) == written
    assert refused(written, UPSERT) == set()


def test_a_topic_that_was_left_out_for_a_while_is_still_without_markers() -> None:
    written = as_last_written(OTHERS, [OTHERS, AT_LEAST_ONCE], EXACTLY_ONCE)

    assert refused(written, EXACTLY_ONCE) == {"sinks.kafka:sent.semantics"}


def test_earlier_declarations_are_not_looked_at_where_every_sink_was_declared_before() -> None:
    def unread() -> Iterator[Stored]:
        raise AssertionError("looked at")
        yield

    assert as_last_written(PLAIN, unread(), PLAIN) == PLAIN


def test_a_table_of_rows_cannot_become_one_of_state() -> None:
    state = StateTable(table="people", key="id", columns=COLUMNS)

    found = changes(PLAIN, {**PLAIN, "state": [json.loads(state.model_dump_json())], "sinks": []})

    (one,) = [one for one in found if one.effect is Effect.REFUSED]
    assert (one.field, one.before, one.now) == ("state.people", "in sinks", "in state")
