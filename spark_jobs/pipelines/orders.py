"""Parses orders from JSON and from CSV, and sums them by user in SQL."""

import csv
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from pipelines.order_query import ORDER_TOTALS

_JSON = ("order_id", "user_name", "money", "ordered_at")
_CSV = ("id", "user_name", "ordered_at", "money")


def parse_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``{"orderId": …, "userId": 1, "money": 10, "createTime": milliseconds}``."""

    def parse_order(value: bytes) -> Sequence[Any]:
        order = json.loads(value)
        user, money, created = (_integer(order[name]) for name in ("userId", "money", "createTime"))
        # An id that is no 64-bit integer raises.
        return str(order["orderId"]), str(pa.scalar(user, pa.int64())), money, created * 1000

    types = (pa.string(), pa.string(), pa.int64(), pa.timestamp("us", tz="UTC"))
    return _parsed(batch, parse_order, _JSON, types)


def parse_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``1,zhangsan,2018-10-20 15:30,358.5``."""

    def parse_order(value: bytes) -> Sequence[Any]:
        ((number, name, moment, money),) = csv.reader([value.decode()])
        return int(number), name, moment, money

    return _parsed(batch, parse_order, _CSV, (pa.int64(), pa.string(), pa.string(), pa.string()))


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError("not an integer")
    return int(value)


def totals(orders: DataFrame) -> DataFrame:
    """Sum the orders by user and day. No column has a reserved name such as ``timestamp``, so none needs quotes."""
    return orders.sparkSession.sql(ORDER_TOTALS, args={"size": "1 day"}, records=orders)


def _parsed(
    batch: pa.RecordBatch,
    parse: Callable[[bytes], Sequence[Any]],
    names: Sequence[str],
    types: Sequence[pa.DataType],
) -> pa.RecordBatch:
    rows: list[Sequence[Any]] = []
    errors: list[str | None] = []
    for value in batch.column("value").to_pylist():
        try:
            row = parse(value or b"")
            # A value that does not fit its column must fail this record, not the batch.
            for cell, kind in zip(row, types, strict=True):
                pa.scalar(cell, kind)
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
            row = (None,) * len(names)
            errors.append(f"is not an order ({type(error).__name__})")
        else:
            errors.append(None)
        rows.append(row)
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    return pa.RecordBatch.from_arrays([*columns, pa.array(errors, pa.string())], names=[*names, "_error"])
