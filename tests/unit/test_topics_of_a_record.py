"""A topic sink that takes the topic from a column, or the whole record from a function: declaration and encoding (N4)."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from epochline import Json, KafkaTopic, Pipeline, Text
from epochline.arrow.formats.outbox import TopicEncoder
from epochline.config.discovery import references
from epochline.errors import BatchContractError, ColumnMismatchError, DeclarationError
from epochline.protocol.changes import Effect
from tests import declaring
from tests.declaring import effects, read_back

COLUMNS = {"id": "integer", "to": "text"}
PACKED = "tests.functions.serializing:packed"


def topic(**declared: Any) -> KafkaTopic:
    fields = {"topic": "eu", "other_topics": ("us", "asia"), "topic_column": "to", "value": Json(columns=COLUMNS)}
    return KafkaTopic(**fields | declared)


def made(**declared: Any) -> KafkaTopic:
    return KafkaTopic(**{"topic": "eu", "value": PACKED, "columns": COLUMNS} | declared)


def pipeline(*sinks: KafkaTopic) -> Pipeline:
    return declaring.pipeline(*sinks, parse=Json(columns=COLUMNS))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: topic(other_topics=()), "other_topics and topic_column: name both"),
        (lambda: topic(topic_column=None), "other_topics and topic_column: name both"),
        (lambda: topic(other_topics=("us", "eu")), "a topic is named twice"),
        (lambda: topic(other_topics="a b"), "Kafka allows no topic named 'a b'"),
        (lambda: topic(other_topics="epochline.markers"), "publish to another topic"),
        (lambda: topic(topic_column="where"), "topic_column: where is not among the columns"),
        (lambda: topic(topic_column="id"), "topic_column: id is integer; it must be text"),
        (
            lambda: pipeline(topic(), KafkaTopic(topic="us", value=Json(columns=COLUMNS))),
            "among the topics of two sinks",
        ),
        (lambda: made(columns={}), "name the columns and types that the function"),
        (lambda: made(key="id"), "the function .* makes them; take them out"),
        (lambda: made(headers={"h": "id"}), "the function .* makes them; take them out"),
        (lambda: made(value="tests.functions.serializing:nothing"), "defines no function 'nothing'"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_declared(make: Callable[[], object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        make()


def test_a_declaration_is_read_back_from_the_ledger_and_others_keep_their_hash() -> None:
    for sink in (topic(), made()):
        read_back(pipeline(sink))
    (stored,) = json.loads(pipeline(KafkaTopic(topic="eu", value=Text(column="to"))).stored())["sinks"]
    assert not {"other_topics", "topic_column"} & stored.keys()
    assert list(references(pipeline(made()))) == [("sinks.kafka:eu.value", PACKED)]


def test_another_list_of_topics_holds_from_the_next_epoch_and_a_column_needs_another_outbox() -> None:
    three, two = pipeline(topic()), pipeline(topic(other_topics="us"))
    alone = pipeline(topic(other_topics=(), topic_column=None))

    assert effects(three, two) == {"sinks.kafka:eu.other_topics": Effect.NEXT_EPOCH}
    assert effects(alone, three)["sinks.kafka:eu.topic_column"] is Effect.MIGRATION


def encode(declared: KafkaTopic, *ids: int, deleted: list[bool] | None = None) -> tuple[pa.RecordBatch, dict[int, str]]:
    columns: dict[str, Any] = {"id": pa.array(ids, pa.int32()), "to": pa.array(["us"] * len(ids))}
    columns |= {} if deleted is None else {"_deleted": deleted}
    return TopicEncoder(declared.outbox("p").spec).encode(pa.record_batch(columns))


def test_the_topic_stands_in_the_outbox() -> None:
    batch, problems = encode(topic(), 1, 2)

    assert (batch.column("topic").to_pylist(), problems) == (["us", "us"], {})


def test_a_deleted_row_keeps_the_key_of_the_function_and_has_no_value() -> None:
    batch, problems = encode(made(), 1, 2, deleted=[False, True])

    assert problems == {}
    assert batch.column("key").to_pylist() == [b"order 1", b"order 2"]
    assert batch.column("value").to_pylist() == [b"\x01\0\0\0", None]
    assert json.loads(batch.column("headers")[0].as_py()) == [["to", "dXM="], ["none", None]]


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("misspelt", BatchContractError, "returned headrs; it may return key, value, headers and _error"),
        ("keyless", ColumnMismatchError, "returned no column value"),
        ("counted", BatchContractError, "returned value with type int32, not binary"),
    ],
)
def test_a_function_that_breaks_its_contract_is_named(function: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=f"value tests.functions.serializing:{function} {said}"):
        encode(made(value=f"tests.functions.serializing:{function}"), 1)


def test_a_header_without_a_name_makes_a_bad_record() -> None:
    batch, problems = encode(made(value="tests.functions.serializing:nameless"), 1, 2)

    assert problems == {0: "kafka:eu: a header has no name"}
    assert batch.column("value").to_pylist() == [None, b"x"]
