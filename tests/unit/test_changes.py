"""What a changed declaration means for the next epoch."""

import json
from typing import Any

import pytest

from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Settings, StateTable
from epochline.declare.parsers import Json, Text
from epochline.protocol.changes import Effect, as_last_written, changes


def stored(**changed: Any) -> dict[str, Any]:
    record = changed.pop("record", {"id": "bigint", "name": "text"})
    fields: dict[str, Any] = {
        "name": "people",
        "source": KafkaSource(topics="people"),
        "parse": Json(columns=record),
        "sinks": [PostgresTable(table="people", columns={"id": "bigint", "name": "text"})],
    }
    body: dict[str, Any] = json.loads(Pipeline(**{**fields, **changed}).stored())
    return body


def topic(**declared: Any) -> KafkaTopic:
    return KafkaTopic(topic="people", value=Json(columns={"id": "bigint"}), **declared)


def test_a_topic_that_was_sent_to_at_least_once_cannot_become_exactly_once():
    """P11: its epochs have no marker, so nobody could tell which ones are there; the other way round loses nothing."""
    again, once = stored(sinks=[topic(semantics="at_least_once")]), stored(sinks=[topic()])

    (refused,) = changes(again, once)
    (allowed,) = changes(once, again)

    assert (refused.field, refused.effect) == ("sinks.kafka:people.semantics", Effect.REFUSED)
    assert "another topic" in refused.advice
    assert allowed.effect is Effect.NEXT_EPOCH


def test_two_sinks_of_other_names_have_other_transactional_ids():
    """P13: a producer that begins with an id fences the id's former producer; dots are allowed in both names."""
    ids = {KafkaTopic(topic=of, value=Text()).transactional_id(name) for name, of in (("a.b", "c"), ("a", "b.c"))}
    assert len(ids) == 2


UPSERT = {"table": "people", "mode": "upsert", "columns": {"id": "bigint", "name": "text"}}


def test_the_same_declaration_has_no_changes():
    assert changes(stored(), stored()) == []


@pytest.mark.parametrize(
    ("before", "now", "field", "effect"),
    [
        (stored(), stored(settings=Settings(timeout=5)), "settings", Effect.NEXT_EPOCH),
        (
            stored(),
            stored(source=KafkaSource(topics="people", records_per_epoch=7)),
            "source.records_per_epoch",
            Effect.NEXT_EPOCH,
        ),
        (
            stored(),
            stored(sinks=[PostgresTable(table="people", columns={"id": "bigint"})]),
            "sinks.people.columns.name",
            Effect.NEXT_EPOCH,
        ),
        (
            stored(sinks=[PostgresTable(table="people", columns={"id": "bigint"})]),
            stored(),
            "sinks.people.columns.name",
            Effect.MIGRATION,
        ),
        (
            stored(),
            stored(sinks=[PostgresTable(table="others", columns={"id": "bigint"})]),
            "sinks.others",
            Effect.MIGRATION,
        ),
        (
            stored(sinks=[PostgresTable(**UPSERT, key="id")]),
            stored(sinks=[PostgresTable(**UPSERT, key="name")]),
            "sinks.people.key",
            Effect.REFUSED,
        ),
        (stored(), stored(sinks=[PostgresTable(**UPSERT, key="id")]), "sinks.people.mode", Effect.REFUSED),
    ],
    ids=["settings", "record limit", "column gone", "column added", "table added", "key", "mode"],
)
def test_each_change_is_told_with_what_becomes_of_it(before, now, field, effect):
    found = {one.field: one.effect for one in changes(before, now)}

    assert found[field] is effect


def _left_out() -> dict[str, Any]:
    return stored(sinks=[PostgresTable(table="others", columns={"id": "bigint"})])


@pytest.mark.parametrize("between", [0, 1, 3])
def test_a_table_is_held_against_what_it_was_last_written_with_however_long_ago(between: int) -> None:
    """Its rows are still there, and mean what they meant."""
    upsert = stored(sinks=[PostgresTable(**UPSERT, key="id")])
    history = [*[_left_out()] * between, upsert, stored()]

    written = as_last_written(history[0], history, stored())

    refused = [one for one in changes(written, stored()) if one.effect is Effect.REFUSED]
    assert {one.field for one in refused} == {"sinks.people.mode", "sinks.people.key"}
    assert as_last_written(history[0], history, upsert) == written
    assert [one for one in changes(written, upsert) if one.effect is Effect.REFUSED] == []


def test_a_topic_that_was_left_out_for_a_while_is_still_without_markers() -> None:
    history = [_left_out(), stored(sinks=[topic(semantics="at_least_once")])]

    found = changes(as_last_written(history[0], history, now := stored(sinks=[topic()])), now)

    assert [one.field for one in found if one.effect is Effect.REFUSED] == ["sinks.kafka:people.semantics"]


def test_earlier_declarations_are_not_looked_at_where_every_sink_was_declared_before() -> None:
    def unread() -> Any:
        raise AssertionError("looked at")
        yield

    assert as_last_written(stored(), unread(), stored()) == stored()


def test_a_table_of_rows_cannot_become_one_of_state() -> None:
    state = StateTable(table="people", key="id", columns={"id": "bigint", "name": "text"})
    kept = stored()
    kept["state"], kept["sinks"] = [json.loads(state.model_dump_json())], []

    (refused,) = [one for one in changes(stored(), kept) if one.effect is Effect.REFUSED]

    assert (refused.field, refused.before, refused.now) == ("state.people", "in sinks", "in state")
