"""A table that a dropped pipeline wrote, and that another pipeline is to write from now on."""

from __future__ import annotations

from typing import Any

import pytest

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import TargetError
from epochline.operations import ACTIONS, Request, Subject
from epochline.testing import FakeKafka
from tests.integration.in_process import InProcess, Read
from tests.reading import range_batch

COLUMNS = {"k": "text", "v": "integer"}


def reading(rows: list[dict[str, Any]]) -> Read:
    """Records of one partition by their offsets."""
    return lambda one: [range_batch(one, rows)]


def pipeline(name: str) -> Pipeline:
    table = PostgresTable(table="t", mode="upsert", key="k", columns=COLUMNS)
    return Pipeline(name=name, source=KafkaSource(topics="orders"), parse=Json(columns=COLUMNS), sinks=[table])


def test_rows_of_a_dropped_pipeline_stop_the_next_one_until_somebody_says_that_they_are_older(
    postgres_dsn: str,
) -> None:
    """INV-9: its records' positions are of another topic; the statement that the refusal names resets the order."""
    kafka = FakeKafka()
    kafka.produce("orders", 0, 3)
    old = InProcess(postgres_dsn, pipeline("one"), kafka, reading([{"k": k, "v": 1} for k in "abc"]))
    old.create()
    old.epoch()
    subject = Subject(name="one", ledger=old.ledger, declared=old.pipeline, source=kafka)
    drop = ACTIONS["drop"]
    drop.act(subject, drop.parse({}), Request(actor="ada", reason="version 2"))  # type: ignore[attr-defined]
    del kafka.views["orders", 0]
    kafka.produce("orders", 0, 2, topic_id="another")
    new = InProcess(postgres_dsn, pipeline("two"), kafka, reading([{"k": k, "v": 100} for k in "ab"]))
    new.create()

    with pytest.raises(TargetError, match="t holds rows that another pipeline wrote") as refused:
        new.epoch()

    assert new.sql("SELECT count(*) FROM epochline.epoch WHERE pipeline = 'two'") == [(0,)]
    new.sql(str(refused.value).partition("every record: ")[2])
    new.epoch()
    assert new.sql("SELECT k, v FROM t ORDER BY k") == [("a", 100), ("b", 100), ("c", 1)]
