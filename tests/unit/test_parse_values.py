"""What a pipeline makes of values, as `epochline preview` and the tests of a pipeline's author ask it."""

from __future__ import annotations

from decimal import Decimal

from epochline import Json, KafkaSource, Pipeline, PostgresTable
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
