"""What a pipeline makes of values, as `epochline preview` and the tests of a pipeline's author ask it."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from epochline import Files, Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable
from epochline.testing import parse_values

COLUMNS = {"id": "bigint", "amount": "numeric(12,2)"}


def pipeline(sink: PostgresTable, bad_records: str = "quarantine") -> Pipeline:
    return Pipeline(
        name="orders", source=KafkaSource(topics="orders"), parse=Json(columns=COLUMNS), sinks=sink,
        bad_records=bad_records,
    )  # fmt: skip


def test_rows_have_their_values_and_place_and_refused_records_their_reason() -> None:
    table = PostgresTable(table="orders", columns=COLUMNS)

    parsed = parse_values(pipeline(table), [b'{"id": 1, "amount": 12.5}', b"no order", b'{"id": 3}'])

    assert parsed.read == 3
    assert [(row["id"], row["amount"], row["_offset"]) for row in parsed.rows] == [
        (1, Decimal("12.50"), 0),
        (3, None, 2),
    ]
    assert [(one.offset, one.reason) for one in parsed.refused] == [(1, "not JSON: Expecting value at character 0")]


def test_a_record_that_a_sink_refuses_gives_no_row() -> None:
    table = PostgresTable(table="orders", mode="upsert", key="id", columns=COLUMNS)

    parsed = parse_values(pipeline(table), [b'{"amount": 1}', b'{"id": 2}'])

    assert [row["id"] for row in parsed.rows] == [2]
    assert [one.reason for one in parsed.refused] == ["orders: NULL in the key column id"]


def test_every_bad_record_is_shown_although_the_policy_would_end_with_the_first() -> None:
    table = PostgresTable(table="orders", columns=COLUMNS)

    parsed = parse_values(pipeline(table, "fail"), [b"one", b"two"])

    assert [one.offset for one in parsed.refused] == [0, 1]


TIMES = {"at": "timestamptz", "day": "date", "clock": "time"}
STRANGE = [
    b'{"at": "infinity"}',
    b'{"day": "-infinity"}',
    b'{"clock": "24:00:00"}',
    b'{"at": "294276-01-01T00:00:00Z"}',
]
PLAIN = [b'{"at": "9999-12-31T23:59:59-14:00"}', b'{"day": "0044-03-15 BC"}', b'{"clock": "23:59:59.999999000"}']


def test_a_value_that_python_has_not_is_shown_as_psql_shows_it() -> None:
    table = PostgresTable(table="t", columns=TIMES)

    parsed = parse_values(Pipeline(name="p", source=KafkaSource(topics="t"), parse=Json(columns=TIMES), sinks=table), [
        *STRANGE, *PLAIN,
    ])  # fmt: skip

    shown = [next(str(row[name]) for name in TIMES if row[name] is not None) for row in parsed.rows]
    assert shown == [
        "infinity", "-infinity", "24:00:00", "294276-01-01 00:00:00.000000+00", "10000-01-01 13:59:59.000000+00",
        "0044-03-15 BC", "23:59:59.999999",
    ]  # fmt: skip
    assert parsed.refused == []


@pytest.mark.parametrize(
    ("sinks", "more", "bad"),
    [
        (lambda: PostgresTable(table="t", columns=TIMES), {"transform": "user_code:as_is"}, [0, 1, 3]),
        (lambda: PostgresTable(table="t", columns=TIMES, select="user_code:as_is"), {}, [0, 1, 2, 3]),
        (lambda: Files(path="/tmp/no-file-is-written", format="parquet", columns=TIMES), {}, [0, 1, 2, 3]),
        (lambda: KafkaTopic(topic="o", value="user_code:made", columns=TIMES), {}, [0, 1, 2, 3]),
    ],
    ids=["transform", "select", "parquet", "serializer"],
)
def test_what_would_take_a_value_for_another_one_does_not_get_it(
    functions: Callable[..., None], sinks: Callable[[], Any], more: dict[str, str], bad: list[int]
) -> None:
    """Arrow has no infinity and no 24:00:00: a function, Spark or a reader of Parquet would see other times. Spark gets a time as text."""
    functions(
        as_is=lambda rows: rows, made=lambda rows: pa.record_batch({"value": pa.array([b""] * rows.num_rows)})
    )  # fmt: skip
    parse = Json(columns=TIMES)
    pipeline = Pipeline(
        name="p", source=KafkaSource(topics="t"), parse=parse, sinks=sinks(), bad_records="quarantine", **more
    )

    refused = parse_values(pipeline, [*STRANGE, *PLAIN]).refused

    assert [one.offset for one in refused if "an infinite date" in one.reason] == bad


def test_texts_take_every_value() -> None:
    files = Files(path="/tmp/no-file-is-written", format="csv", columns=TIMES)

    parsed = parse_values(
        Pipeline(name="p", source=KafkaSource(topics="t"), parse=Json(columns=TIMES), sinks=files), STRANGE
    )

    assert parsed.refused == []
