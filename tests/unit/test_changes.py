"""What a changed declaration means for the next epoch."""

import json
from typing import Any

import pytest

from epochline import KafkaSource, Pipeline, PostgresTable, Settings
from epochline.changes import Effect, changes
from epochline.parsing import Json


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
