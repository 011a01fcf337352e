"""Orders, as JSON and as comma-separated text, and what each user spent, in SQL (E10, E11)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

_JSON = ("order_id", "user_id", "money", "create_time")
_CSV = ("id", "user_name", "ordered_at", "money")

_TOTALS = """
SELECT user_name, sum(money) AS total_money, max(money) AS max_money, min(money) AS min_money, count(1) AS total_count
FROM {orders} GROUP BY user_name
"""


def parse_json(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``{"orderId": …, "userId": 1, "money": 10, "createTime": milliseconds}``."""

    def one(value: bytes) -> Sequence[Any]:
        order = json.loads(value)
        user, money, created = (_integer(order[name]) for name in ("userId", "money", "createTime"))
        return str(order["orderId"]), user, money, created * 1000

    types = (pa.string(), pa.int64(), pa.int64(), pa.timestamp("us", tz="UTC"))
    return _parsed(batch, one, _JSON, types)


def parse_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``1,zhangsan,2018-10-20 15:30,358.5``."""

    def one(value: bytes) -> Sequence[Any]:
        ((number, name, moment, money),) = csv.reader([value.decode()])
        return int(number), name, moment, money

    return _parsed(batch, one, _CSV, (pa.int64(), pa.string(), pa.string(), pa.string()))


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError("no integer")
    return int(value)


def totals(orders: DataFrame) -> DataFrame:
    """What each user spent; ``timestamp`` and the like are no names of columns here, so that nothing needs quoting."""
    return orders.sparkSession.sql(_TOTALS, orders=orders)


def _parsed(
    batch: pa.RecordBatch, one: Callable[[bytes], Sequence[Any]], names: Sequence[str], types: Sequence[pa.DataType]
) -> pa.RecordBatch:
    rows: list[Sequence[Any]] = []
    errors: list[str | None] = []
    for value in batch.column("value").to_pylist():
        try:
            row = one(value or b"")
            # Whatever does not fit its column is this record's fault, not that of the batch.
            for cell, kind in zip(row, types, strict=True):
                pa.scalar(cell, kind)
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
            row = (None,) * len(names)
            errors.append(f"is no order ({type(error).__name__})")
        else:
            errors.append(None)
        rows.append(row)
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    return pa.RecordBatch.from_arrays([*columns, pa.array(errors, pa.string())], names=[*names, "_error"])
