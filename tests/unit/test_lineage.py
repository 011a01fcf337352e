"""What a task tells OpenLineage of its epoch: names, columns, ranges and rows, as the specification wants them."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest

from epochline import CustomSource, Files, Input, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable, Sources, Text
from epochline.airflow import lineage
from epochline.airflow.lineage import Known, TellsLineage, Written, note_address
from epochline.airflow.lineage_events import PRODUCER, Described, epoch_facets, inputs, outputs
from epochline.config.connections import Connection
from epochline.protocol.epoch import Counts, Epoch, EpochKind, EpochState, Run
from epochline.protocol.offsets import OffsetRange, PlannedRange, TopicPartition
from tests.declaring import pipeline
from tests.openlineage import OWN, SCHEMAS, problems

SECRET = "canary-7c1e"
COLUMNS = {"value": "text", "paid": "numeric(12,2)"}
EPOCH = Epoch(
    pipeline="p", epoch_id=7, generation=1, state=EpochState.COMMITTED, attempt=2, kind=EpochKind.REGULAR,
    run=Run(dag_id="p", run_id="r", host="h"), declaration_hash="0" * 16, lease_expired=False,
    planned_at=datetime(2026, 1, 1, tzinfo=UTC), counts=Counts(read=9, passed=7, skipped=1, quarantined=1), rows_written=7,
)  # fmt: skip


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "ADDRESSES", {})
    monkeypatch.setattr("epochline.airflow.lineage_events.ADDRESSES", lineage.ADDRESSES)
    login: Mapping[str, Any] = {"login": "somebody", "password": SECRET}
    note_address("epochline_postgres", Connection(where="", host=f"somebody:{SECRET}@db,other", schema="shop", **login))
    brokers = {"bootstrap.servers": "SASL_SSL://one:9093,two:9093", "sasl.password": SECRET}
    note_address("epochline_kafka", Connection(where="", extra=brokers, **login))


def ranges(*topics: str) -> list[PlannedRange]:
    return [
        PlannedRange(
            tp=TopicPartition(topic=topic, topic_id="id", partition=partition),
            range=OffsetRange(start=10, until=10 + many),
        )
        for topic in topics
        for partition, many in ((1, 4), (0, 5))
    ]


def event(of: Pipeline, known: Known) -> dict[str, Any]:
    """An event as the provider sends it."""

    def datasets(described: Iterator[Described], of_run: str) -> list[dict[str, Any]]:
        fields = (asdict(one) for one in described)
        return [{of_run if name == "of_run" else name: value for name, value in one.items()} for one in fields]

    return {
        "eventTime": "2026-01-01T00:00:00Z",
        "eventType": "COMPLETE",
        "producer": "https://example.org",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "run": {"runId": "3f5e83fa-3480-44ff-99c5-ff943904e5e8", "facets": epoch_facets(of, "7", known)},
        "job": {"namespace": "default", "name": "p.commit_epoch"},
        "inputs": datasets(inputs(of, known), "inputFacets"),
        "outputs": datasets(outputs(of, known), "outputFacets"),
    }


def names(described: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in described]


def test_a_commit_tells_what_it_read_and_the_rows_and_columns_of_each_table() -> None:
    """SEC-4: an event of a committed epoch is valid, and holds no login."""
    tables = PostgresTable(table="paid", columns=COLUMNS), PostgresTable(table="else.where")
    of = pipeline(*tables, parse=Json(columns=COLUMNS))
    known = Known(
        epoch=EPOCH, ranges=ranges("t"),
        written={"paid": Written(rows=4, columns=COLUMNS), "else.where": Written(rows=3, columns={"value": "text"})},
    )  # fmt: skip

    told = event(of, known)

    assert problems(told) == []
    assert names(told["inputs"]) == [("kafka://one:9093", "t")]
    offsets = told["inputs"][0]["inputFacets"]["epochline_offsets"]
    assert offsets["offsets"] == 9
    assert offsets["partitions"] == [
        {"partition": 0, "start": 10, "until": 15},
        {"partition": 1, "start": 10, "until": 14},
    ]
    assert names(told["outputs"]) == [
        ("postgres://db:5432", "shop.public.paid"),
        ("postgres://db:5432", "shop.else.where"),
    ]
    assert [one["outputFacets"]["outputStatistics"]["rowCount"] for one in told["outputs"]] == [4, 3]
    fields = [[tuple(field.values()) for field in one["facets"]["schema"]["fields"]] for one in told["outputs"]]
    assert fields[0][:3] == [("value", "text"), ("paid", "numeric(12,2)"), ("_topic", "text")]
    assert [name for name, _ in fields[1]] == ["value", "_topic", "_partition", "_offset", "_row", "_epoch"]
    epoch = told["run"]["facets"]["epochline_epoch"]
    assert (epoch["epochId"], epoch["state"], epoch["attempt"], epoch["rowsWritten"]) == (7, "COMMITTED", 2, 7)
    assert epoch["records"] == {"read": 9, "passed": 7, "skipped": 1, "quarantined": 1}
    assert not [secret for secret in (SECRET, "somebody") if secret in json.dumps(told)]


def test_an_earlier_tries_commit_tells_the_declared_columns_and_no_number_of_rows() -> None:
    of = pipeline(PostgresTable(table="paid", columns=COLUMNS), parse=Json(columns=COLUMNS))

    told = event(of, Known(epoch=EPOCH, ranges=ranges("t"), written={"paid": Written()}))

    assert problems(told) == []
    [table] = told["outputs"]
    assert [one["name"] for one in table["facets"]["schema"]["fields"]][:3] == ["value", "paid", "_topic"]
    assert table["outputFacets"] == {}


def test_a_publication_tells_the_topics_and_folders_with_the_epochs_that_they_show() -> None:
    sinks = [
        KafkaTopic(topic="out", value=Text()),
        KafkaTopic(topic="a", other_topics=("b",), topic_column="value", columns={"value": "text"}, value=Text()),
        Files(path="/srv/out", columns={"value": "text"}),
        Files(path="s3://bucket/some/key", columns={"value": "text"}),
        Files(path="webhdfs://namenode:9870/some", columns={"value": "text"}),
    ]
    of = pipeline(PostgresTable(table="t"), *sinks)
    written = {str(sink.name): Written(rows=5, epochs=(6, 7)) for sink in of.post_commit_sinks}

    told = event(of, Known(written=written))

    assert problems(told) == []
    assert names(told["inputs"]) == [("kafka://one:9093", "t")]
    assert names(told["outputs"]) == [
        ("kafka://one:9093", "out"), ("kafka://one:9093", "a"), ("kafka://one:9093", "b"), ("file", "/srv/out"),
        ("s3://bucket", "some/key"), ("webhdfs://namenode:9870", "/some"),
    ]  # fmt: skip
    told_rows = [one["outputFacets"].get("outputStatistics", {}).get("rowCount") for one in told["outputs"]]
    assert told_rows == [5, None, None, 5, 5, 5]
    assert {tuple(one["outputFacets"]["epochline_epochs"]["epochIds"]) for one in told["outputs"]} == {(6, 7)}


def test_several_sources_are_told_apart_and_a_source_of_ones_own_has_no_name() -> None:
    note_address("events", Connection(where="", extra={"bootstrap.servers": "[::1]:19092"}))
    grown = CustomSource(
        source="epochline.sources.growing_table:GrowingTable", label="bills", positions="sparse",
        connection="epochline_postgres", options={"table": "bills", "key": "id", "schema": "shop"},
    )  # fmt: skip
    own = CustomSource(source="scripted_source:ScriptedSource", label="own", positions="dense")
    read: dict[str, KafkaSource | CustomSource] = {
        "clicks": KafkaSource(topics="t", connection="events"), "orders": KafkaSource(topics="t"), "bills": grown, "own": own,
    }  # fmt: skip
    of = pipeline(
        PostgresTable(table="t", columns={"value": "text"}, aggregated=True),
        source=Sources(inputs={name: Input(source=source, parse=Text()) for name, source in read.items()}),
        parse=None, transform="side_by_side:rows",
    )  # fmt: skip

    told = event(of, Known(epoch=EPOCH, ranges=ranges("clicks/t", "orders/t", "bills/bills", "own/own")))

    assert problems(told) == []
    assert names(told["inputs"]) == [
        ("kafka://[::1]:19092", "t"), ("kafka://one:9093", "t"), ("postgres://db:5432", "shop.shop.bills"),
    ]  # fmt: skip


def test_a_task_that_has_just_started_tells_the_pipeline_and_its_epoch_alone() -> None:
    """A fork that is ended while it asks Airflow for a connection would leave the answer to the task."""
    lineage.ADDRESSES.clear()

    told = [event(pipeline(), Known()), {"run": {"facets": epoch_facets(pipeline(), "", Known())}}]

    assert problems(told[0]) == []
    assert (told[0]["inputs"], told[0]["outputs"]) == ([], [])
    assert [one["run"]["facets"]["epochline_epoch"].get("epochId") for one in told] == [7, None]
    assert told[0]["run"]["facets"]["epochline_epoch"]["_producer"] == PRODUCER


class Task(TellsLineage):
    pipeline = pipeline()
    known = Known(epoch=EPOCH)


@pytest.mark.parametrize("hook", ["on_start", "on_complete", "on_failure"])
def test_an_error_while_lineage_is_composed_is_logged_by_name_and_raises_nothing(
    hook: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*known: object) -> None:
        raise LookupError("a column without a name")

    monkeypatch.setattr("epochline.airflow.lineage_events.operator_lineage", broken)

    with caplog.at_level(logging.WARNING):
        told = getattr(Task(), f"get_openlineage_facets_{hook}")(*[None] * (hook != "on_start"))

    assert told is None
    [line] = caplog.messages
    assert line.startswith("lineage.not_told pipeline=p reason=LookupError: a column without a name")


def test_the_schema_of_a_facet_never_changes_and_lies_where_events_say() -> None:
    """Another version of a facet is another file: whoever keeps old events finds what they mean."""
    known = {
        "1-0-0/EpochlineEpochRunFacet.json": "b78a51dd55c0e575",
        "1-0-0/EpochlineEpochsOutputDatasetFacet.json": "595c32f641116cdb",
        "1-0-0/EpochlineOffsetsInputDatasetFacet.json": "ceae5378ed4628a7",
    }

    found = {str(file.relative_to(OWN)): file for file in sorted(OWN.rglob("*.json"))}

    assert {name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for name, file in found.items()} == known
    for name in found:
        assert (
            f"https://raw.githubusercontent.com/epochline/epochline/main/include/epochline/airflow/facets/{name}"
            in SCHEMAS
        )
