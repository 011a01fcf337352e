"""A table that a dropped pipeline wrote, and that another pipeline is to write from now on."""

from typing import Any

import pytest

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.errors import TargetError
from epochline.operations import Request, Subject
from epochline.operations.runs import Drop
from tests.in_memory.kafka import FakeKafka
from tests.integration.in_process import InProcess
from tests.reading import range_batch

COLUMNS = {"k": "text", "v": "integer"}


def writing(dsn: str, name: str, kafka: FakeKafka, rows: list[dict[str, Any]]) -> InProcess:
    """A pipeline into the table, and the records of its one partition by their offsets."""
    table = PostgresTable(table="t", mode="upsert", key="k", columns=COLUMNS)
    declared = Pipeline(name=name, source=KafkaSource(topics="orders"), parse=Json(columns=COLUMNS), sinks=[table])
    made = InProcess(dsn, declared, kafka, lambda one: [range_batch(one, rows)])
    made.create()
    return made


def test_rows_of_a_dropped_pipeline_stop_the_next_one_until_somebody_says_that_they_are_older(
    postgres_dsn: str,
) -> None:
    """INV-9: its records' positions are of another topic; the statement that the refusal names resets the order."""
    kafka = FakeKafka()
    kafka.produce("orders", 0, 3)
    old = writing(postgres_dsn, "one", kafka, [{"k": k, "v": 1} for k in "abc"])
    old.epoch()
    subject = Subject(name="one", ledger=old.ledger, declared=old.pipeline, source=kafka)
    Drop().act(subject, Drop().parse({}), Request(actor="ada", reason="version 2"))
    del kafka.views["orders", 0]
    kafka.produce("orders", 0, 2, topic_id="another")
    new = writing(postgres_dsn, "two", kafka, [{"k": k, "v": 100} for k in "ab"])

    with pytest.raises(TargetError, match="t holds rows that another pipeline wrote") as refused:
        new.epoch()

    assert new.sql("SELECT count(*) FROM epochline.epoch WHERE pipeline = 'two'") == [(0,)]
    new.sql(refused.value.said.partition("every record: ")[2])
    new.epoch()
    assert new.sql("SELECT k, v FROM t ORDER BY k") == [("a", 100), ("b", 100), ("c", 1)]
