"""Streaming SQL through Spark: every function, late records, and a text that Spark would read otherwise."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochline import EventTime, Json, KafkaSource, Pipeline, PostgresTable, WindowedQuery
from epochline.declare.sql_dialect import ROW_WISE
from epochline.errors import DeclarationError
from epochline.spark.windowing import require_same_query
from tests.integration.spark.conftest import Records, Runs, Servers

RECORD = {
    "run": "integer", "number": "integer", "key": "text", "partition": "integer", "at": "timestamptz",
    "amount": "bigint", "price": "numeric(12,2)", "ok": "boolean",
}  # fmt: skip
SPARK_RECORD = (
    "run int, number int, key string, partition int, at timestamp, amount bigint, price decimal(12,2), ok boolean"
)
MORE = {"day": "date", "ratio": "double precision"}
T0 = datetime(2026, 3, 1, tzinfo=UTC)


CALLS = {
    # Each allowed function, as a value that count() takes.
    "abs": "abs(amount)", "ceil": "ceil(price)", "ceiling": "ceiling(price)", "floor": "floor(price)",
    "round": "round(price, 1)", "bround": "bround(price, 1)", "sign": "sign(price)", "signum": "signum(price)",
    "mod": "mod(amount, 3)", "pmod": "pmod(amount, 3)", "greatest": "greatest(amount, 3)",
    "least": "least(amount, 3)", "try_add": "try_add(amount, 1)", "try_subtract": "try_subtract(amount, 1)",
    "try_multiply": "try_multiply(amount, 2)", "try_divide": "try_divide(amount, 2)", "coalesce": "coalesce(key, 'a')",
    "nullif": "nullif(key, 'a')", "ifnull": "ifnull(key, 'a')", "nvl": "nvl(key, 'a')", "nvl2": "nvl2(key, 1, 2)",
    "if": "if(ok, 1, 2)", "isnull": "isnull(key)", "isnotnull": "isnotnull(key)", "isnan": "isnan(ratio)",
    "nanvl": "nanvl(ratio, CAST(0 AS double))", "upper": "upper(key)", "lower": "lower(key)", "ucase": "ucase(key)",
    "lcase": "lcase(key)", "trim": "trim(key)", "ltrim": "ltrim(key)", "rtrim": "rtrim(key)", "btrim": "btrim(key)",
    "length": "length(key)", "char_length": "char_length(key)", "character_length": "character_length(key)",
    "substring": "substring(key, 1, 2)", "substr": "substr(key, 1, 2)", "left": "left(key, 2)",
    "right": "right(key, 2)", "concat": "concat(key, 'a')", "concat_ws": "concat_ws('-', key, 'a')",
    "replace": "replace(key, 'a', 'b')", "translate": "translate(key, 'a', 'b')",
    "split_part": "split_part(key, '-', 1)", "lpad": "lpad(key, 5, '-')", "rpad": "rpad(key, 5, '-')",
    "reverse": "reverse(key)", "repeat": "repeat(key, 2)", "initcap": "initcap(key)", "instr": "instr(key, 'a')",
    "startswith": "startswith(key, 'a')", "endswith": "endswith(key, 'a')", "contains": "contains(key, 'a')",
    "regexp_extract": r"regexp_extract(key, '(\\d+)', 1)", "regexp_replace": "regexp_replace(key, 'a+', 'b')",
    "regexp_like": "regexp_like(key, 'a+')", "ascii": "ascii(key)", "md5": "md5(key)", "sha1": "sha1(key)",
    "sha2": "sha2(key, 256)", "crc32": "crc32(key)", "hex": "hex(key)",
    "get_json_object": "get_json_object(key, '$.a')", "year": "year(day)", "quarter": "quarter(day)",
    "month": "month(day)", "day": "day(day)", "dayofmonth": "dayofmonth(day)", "dayofweek": "dayofweek(day)",
    "dayofyear": "dayofyear(day)", "weekday": "weekday(day)", "weekofyear": "weekofyear(day)", "hour": "hour(at)",
    "minute": "minute(at)", "second": "second(at)", "date_trunc": "date_trunc('hour', at)",
    "trunc": "trunc(day, 'MM')", "date_add": "date_add(day, 1)", "date_sub": "date_sub(day, 1)",
    "datediff": "datediff(day, day)", "last_day": "last_day(day)", "to_date": "to_date(key, 'yyyy-MM-dd')",
    "to_timestamp": "to_timestamp(key, 'yyyy-MM-dd')", "unix_seconds": "unix_seconds(at)",
    "unix_millis": "unix_millis(at)", "unix_micros": "unix_micros(at)",
    "timestamp_seconds": "timestamp_seconds(amount)", "timestamp_millis": "timestamp_millis(amount)",
    "timestamp_micros": "timestamp_micros(amount)",     "cast": "CAST(key AS decimal(12,3))", "try_cast": "try_cast(key AS bigint)",
}  # fmt: skip


@pytest.fixture(scope="module")
def empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], f"{SPARK_RECORD}, day date, ratio double")


def select(what: str, rest: str = "") -> WindowedQuery:
    text = f"SELECT key, window.start AS begins, {what} FROM {{records}} {rest}"
    return WindowedQuery(query=text, time=EventTime(column="at"), into="cut")


GROUPED = "GROUP BY window(at, '10 seconds'), key"


def test_spark_reads_every_function_that_a_query_may_call_as_it_was_read_when_declared(empty: DataFrame) -> None:
    assert CALLS.keys() == ROW_WISE
    counted = ", ".join(f"count({call}) AS `of {name}`" for name, call in CALLS.items())
    declared = select(counted, f"WHERE {' AND '.join(f'{call} IS NOT NULL' for call in CALLS.values())} {GROUPED}")

    types = require_same_query(empty, declared.compiled(RECORD | MORE))

    assert [types[f"of {name}"].dataType.simpleString() for name in ROW_WISE] == ["bigint"] * len(ROW_WISE)


def order(shop: str, second: int, price: str, *, paid: bool = True) -> bytes:
    at = (T0 + timedelta(seconds=second)).isoformat()
    return json.dumps({"shop": shop, "at": at, "price": price, "paid": paid}).encode()


RESULT = {"shop": "text", "begins": "timestamptz", "orders": "bigint", "mean": "numeric(38,17)"}
ORDERS = """
SELECT shop, window.start AS begins, count(*) AS orders, sum(price) / count(price) AS mean
FROM {records}
WHERE paid
GROUP BY window(at, '5 seconds'), shop
HAVING count(*) < 3
"""


@pytest.fixture
def shops(servers: Servers) -> Callable[..., Runs]:
    def make(query: str = ORDERS, *, records: Records) -> Runs:
        columns = {"shop": "text", "at": "timestamptz", "price": "numeric(10,2)", "paid": "boolean"}
        declared = WindowedQuery(
            query=query, time=EventTime(column="at"), into="per_shop", lateness=10, too_late="late_orders"
        )
        results = PostgresTable(
            table="per_shop", mode="upsert", key=("shop", "begins"), columns=RESULT, aggregated=True, before_images=10
        )
        pipeline = Pipeline(
            name=servers.name, source=KafkaSource(topics=servers.topic(records)), parse=Json(columns=columns),
            windows=declared, sinks=[results, PostgresTable(table="late_orders", columns=columns)],
            bad_records="quarantine",
        )  # fmt: skip
        return Runs(servers, pipeline)

    return make


def test_a_query_is_corrected_by_late_records_and_a_result_that_having_no_longer_takes_is_deleted(
    shops: Callable[..., Runs],
) -> None:
    """E11, X21, INV-6: from Kafka into PostgreSQL; an aborted attempt leaves nothing; partial results are exact."""
    first = [order("a", 1, "0.10"), order("a", 2, "0.20", paid=False), order("b", 1, "1"), order("b", 2, "2")]
    run = shops(records={0: [*first, order("b", 3, "3"), b'{"at": null}', order("c", 6, "7")]})

    def results() -> list[tuple[Any, ...]]:
        found = run.database.query("SELECT shop, begins, orders, mean FROM per_shop ORDER BY 1, 2")
        return [(shop, (begins - T0).seconds, orders, mean) for shop, begins, orders, mean in found]

    assert run.epoch().counts.quarantined == 1
    assert results() == [("a", 0, 1, Decimal("0.1"))]

    run.produce({0: [order("a", 3, "0.40")]})
    planned, who = run.planned()
    run.sealed(planned, who)
    run.crashed(planned, who)
    assert results() == [("a", 0, 1, Decimal("0.1"))]
    run.epoch()
    assert results() == [("a", 0, 2, Decimal("0.25"))]

    run.produce({0: [order("a", 4, "0.40"), order("c", 21, "1")]})
    run.epoch()
    assert results() == [("c", 5, 1, Decimal(7))]

    run.produce({0: [order("a", 2, "5", paid=False), order("a", 2, "5")]})
    run.epoch()
    assert results() == [("c", 5, 1, Decimal(7))]
    assert run.database.query("SELECT shop, price, paid FROM late_orders") == [("a", Decimal(5), True)]
    assert run.database.query("SELECT shop FROM per_shop_open") == [("c",)]


def test_a_query_that_spark_reads_otherwise_is_refused_before_anything_is_staged(shops: Callable[..., Runs]) -> None:
    """E11: sqlglot takes one interval for two, which Spark would add."""
    longer = "WHERE at + INTERVAL 1 HOUR 2 MINUTES > at"
    run = shops(ORDERS.replace("WHERE paid", longer), records={0: [order("a", 1, "1"), order("a", 9, "1")]})
    planned, who = run.planned()

    with pytest.raises(DeclarationError, match="Spark reads it otherwise than Epochline") as refused:
        run.staged(planned, who)

    assert "INTERVAL '1' HOUR + INTERVAL '2' MINUTES" in str(refused.value)
    assert run.database.query("SELECT count(*) FROM epochline.part") == [(0,)]
