"""The documents' orders: a record that is not an order is the error of its own row alone (E10, E11, F28)."""

import pyarrow as pa
import pytest

from pipelines.orders import parse_csv, parse_json


def batch(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


@pytest.mark.parametrize(
    "value",
    [
        b'{"orderId": "a", "userId": 1, "money": 1e999, "createTime": 1}',
        b'{"orderId": "a", "userId": 1, "money": 1.9, "createTime": 1}',
        b'{"orderId": "a", "userId": true, "money": 1, "createTime": 1}',
        b'{"orderId": "a", "userId": 99999999999999999999, "money": 1, "createTime": 1}',
        b'{"orderId": "a", "userId": 1, "money": 1, "createTime": 99999999999999999999}',
        b'{"orderId": "\\ud800", "userId": 1, "money": 1, "createTime": 1}',
        b"[" * 100_000,
        b"",
    ],
)
def test_what_is_no_order_is_an_error_of_its_own_row(value: bytes) -> None:
    good = b'{"orderId": "b", "userId": 2, "money": 3, "createTime": 1571535000000}'

    rows = parse_json(batch(value, good)).to_pylist()

    assert rows[0]["_error"].startswith("is no order")
    assert rows[0]["money"] is None
    assert (rows[1]["order_id"], rows[1]["money"], rows[1]["_error"]) == ("b", 3, None)


@pytest.mark.parametrize(
    "value", [b"1,zhangsan", b"x,zhangsan,2018-10-20 15:30,358.5", b'1,"', b"\xff,a,b,c", b"9" * 30]
)
def test_a_line_that_is_no_order_is_an_error_of_its_own_row(value: bytes) -> None:
    rows = parse_csv(batch(value, b"1,zhangsan,2018-10-20 15:30,358.5")).to_pylist()

    assert rows[0]["_error"].startswith("is no order")
    assert (rows[1]["id"], rows[1]["user_name"], rows[1]["money"]) == (1, "zhangsan", "358.5")
