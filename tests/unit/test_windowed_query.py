"""What a query over windows may hold, and why it may not hold the rest."""

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from epochline import EventTime, Json, KafkaTopic, Pipeline, PostgresTable, Session, Sliding, Tumbling
from epochline import WindowedQuery as Query
from epochline.config.discovery import find
from epochline.declare.sql_dialect import AGGREGATES, ROW_WISE_BY_SUBJECT
from epochline.declare.windowed_query import QueryWindows
from epochline.errors import DeclarationError
from epochline.protocol.changes import Effect
from pipelines import orders
from pipelines.order_query import ORDER_TOTALS
from tests import declaring
from tests.declaring import effects, read_back

ROOT = Path(__file__).parents[2]
RECORD = {
    "shop": "text", "at": "timestamptz", "pieces": "integer", "price": "numeric(10,2)", "ratio": "double precision",
    "long_price": "numeric(20,2)", "any_price": "numeric", "paid": "boolean", "clock": "time", "seen_at": "timestamp",
}  # fmt: skip
KEY = ("shop", "begins")
GROUPED = "GROUP BY window(at, '10 seconds'), shop"
COUNTED = f"SELECT shop, window.start AS begins, count(*) AS n FROM {{records}} {GROUPED}"


def sink(**changed: Any) -> PostgresTable:
    columns = {"shop": "text", "begins": "timestamptz", "n": "bigint"}
    fields = {"table": "hits", "mode": "upsert", "key": KEY, "columns": columns, "aggregated": True}
    return PostgresTable(**fields | changed)


def pipeline(query: str = COUNTED, sinks: Any = None, record: dict[str, str] = RECORD, **changed: Any) -> Pipeline:
    windows = Query(**{"query": query, "time": EventTime(column="at"), "into": "hits"} | changed)
    return declaring.pipeline(parse=Json(columns=record), windows=windows, sinks=sinks or sink())


def of(value: str, where: str = "", rest: str = "") -> str:
    return f"SELECT shop, window.start AS begins, {value} AS n FROM {{records}} {where} {GROUPED} {rest}"


def compiled(query: str) -> QueryWindows:
    windows = pipeline(query).windowing
    assert isinstance(windows, QueryWindows)
    return windows


def test_open_windows_hold_partial_aggregates_whose_types_lose_nothing() -> None:
    """E11: PostgreSQL keeps what Spark gives, for every aggregate."""
    partials = {
        **{value: {"n": "bigint"} for value in ("count(*)", "count(1)", "sum(pieces)", "count_if(pieces > 3)")},
        "sum(price)": {"n": "numeric(20,2)"},
        "max(seen_at)": {"n": "timestamp without time zone"},
        "min(shop)": {"n": "text"},
        "max(ratio)": {"n": "double precision"},
        "every(paid)": {"n": "boolean"},
        "sum(CAST(ratio AS decimal(30,2)))": {"n": "numeric(38,2)"},
        "sum(pieces) FILTER (WHERE paid)": {"n": "bigint"},
        "max(price) - min(price)": {"partial_1": "numeric(10,2)", "partial_2": "numeric(10,2)"},
        "avg(price)": {"partial_1": "numeric(20,2)", "partial_2": "bigint"},
        "sum(price) / count(price) + avg(price)": {"partial_1": "numeric(20,2)", "partial_2": "bigint"},
    }
    begin = {"shop": "text", "window_start": "timestamp with time zone", "window_end": "timestamp with time zone"}

    for value, columns in partials.items():
        (state,) = pipeline(of(value)).states
        assert (state.table, state.key) == ("hits_open", ("shop", "window_start"))
        assert state.columns == begin | columns, value


@pytest.mark.parametrize(
    ("group", "window"),
    [
        ("window(at, '10 seconds')", Tumbling(size=10)),
        ("WINDOW(at, 'interval 1 hour 30 minutes')", Tumbling(size=5400)),
        ("window(at, '10 seconds', '5 seconds')", Sliding(size=10, slide=5)),
        # Spark merges sessions that touch, `Session` only those that overlap.
        ("session_window(at, '7 seconds')", Session(gap=timedelta(seconds=7, microseconds=1))),
    ],
)
def test_each_kind_of_window_is_one_that_epochs_have(group: str, window: object) -> None:
    start = group.split("(")[0].lower()

    query = f"SELECT shop, {start}.start AS begins, count(*) AS n FROM {{records}} GROUP BY {group}, shop"

    assert compiled(query).window == window


def test_a_markers_value_is_text_and_belongs_to_the_declaration() -> None:
    marked = COUNTED.replace("'10 seconds'", ":size")

    assert pipeline(marked, parameters={"size": "10 seconds"}).windowing == compiled(COUNTED).model_copy(
        update={"query": marked, "parameters": {"size": "10 seconds"}}
    )
    with pytest.raises(DeclarationError, match="size is too many or missing"):
        pipeline(marked)
    with pytest.raises(DeclarationError, match="more is too many or missing"):
        pipeline(marked, parameters={"size": "10 seconds", "more": "1"})


def test_a_declaration_with_a_query_is_read_back_from_the_ledger() -> None:
    read_back(pipeline(of("avg(price)", "WHERE paid", "HAVING count(*) > 1"), lateness=3))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        # what needs every record of a window at once
        (of("count(*) OVER ()"), "OVER is refused: it needs every record of a window at once"),
        (of("count(DISTINCT pieces)"), "DISTINCT in an aggregate is refused: it needs every value"),
        (of("median(pieces)"), r"median\(\) is refused: it needs every record"),
        (of("rank()"), "belongs to OVER"),
        # what depends on the order of the records
        (of("first(pieces)"), r"first\(\) is refused: its result depends on the order of the records"),
        (of("collect_list(pieces)"), "depends on the order of the records"),
        (of("sum(ratio)"), "a sum of double precision depends on the order of the records"),
        (of("avg(pieces)"), "average of integer is a floating point number"),
        (of("stddev(price)"), "computed in floating point"),
        (of("any_value(pieces) IGNORE NULLS"), "depends on the order"),
        # what gives another result at each try
        (of("max(CAST(rand() AS double))"), r"rand\(\) is refused: it gives another result at each try"),
        (of("max(CAST(`rand`() AS double))"), r"rand\(\) is refused"),
        (of("count(*)", "WHERE at > current_timestamp"), r"current_timestamp\(\) is refused"),
        (of("count(*)", "WHERE at > now()"), r"now\(\) is refused"),
        (of("count(uuid())"), r"uuid\(\) is refused"),
        # other rows than an epoch's records
        (of("count(*)", "JOIN shops USING (shop)"), "without an alias or a join|a join is refused"),
        (of("count(*)", "WHERE shop IN (SELECT 'a')"), "a subquery is refused"),
        (of("count(*)", "", "HAVING EXISTS (SELECT 1)"), "a subquery is refused"),
        (of("max((SELECT 1))"), "a subquery is refused"),
        (COUNTED.replace("{records}", "orders"), "write FROM {records} once"),
        (COUNTED.replace("{records}", "{records}, {records}"), "write FROM {records} once"),
        (COUNTED.replace("{records}", "{records} AS r"), "without an alias"),
        (f"WITH a AS (SELECT 1) {COUNTED}", "WITH is refused"),
        (f"{COUNTED} UNION ALL SELECT 1", "set operations"),
        # what no table of results has
        (f"{COUNTED} ORDER BY n", "ORDER BY is refused"),
        (f"{COUNTED} LIMIT 3", "LIMIT is refused"),
        (COUNTED.replace("SELECT", "SELECT DISTINCT"), "DISTINCT is refused"),
        (COUNTED.replace("shop, window", "*, window"), r"\* is refused"),
        # groups
        ("SELECT shop, count(*) AS n FROM {records} GROUP BY shop", "group by one window"),
        ("SELECT shop, count(*) AS n FROM {records}", "write GROUP BY with a window"),
        (COUNTED.replace("), shop", "), ROLLUP (shop)"), "group by a window and columns"),
        (
            COUNTED.replace("GROUP BY", "GROUP BY GROUPING SETS ((shop)),"),
            "group by a window and columns|GROUPING SETS are refused",
        ),
        (COUNTED.replace("), shop", "), upper(shop)"), "group by a window and columns of the record"),
        (COUNTED.replace("), shop", "), 1"), "group by a window and columns of the record"),
        (COUNTED.replace("), shop", "), shop, window(at, '1 hour')"), "group by one window"),
        (COUNTED.replace("'10 seconds'", "'1 month'"), "'1 month' is no duration"),
        (COUNTED.replace("'10 seconds'", "10"), "durations as text"),
        (COUNTED.replace("'10 seconds'", "'10 seconds', '5 seconds', '1 second'"), "aligned to 1970-01-01"),
        (COUNTED.replace("(at,", "(seen_at,"), "time.column is at, but the query's window is of seen_at"),
        # columns
        (of("sum(cost)"), "cost is not a column of the record"),
        (of("count(*)", "WHERE cost > 1"), "cost is not a column of the record"),
        (of("pieces"), "pieces is neither in GROUP BY nor in an aggregate"),
        (of("count(*)", "", "HAVING n > 1"), "n is neither in GROUP BY nor in an aggregate"),
        (of("count(*)", "", "HAVING `n` > 1"), "n` is neither in GROUP BY nor in an aggregate"),
        (of("count(*)", "WHERE count(*) > 1"), "is an aggregate inside of it"),
        (of("sum(max(pieces))"), "is an aggregate inside of it"),
        (of("min(pieces, price)"), "an aggregate takes one argument"),
        (of("count(*) AS shop, max(pieces)"), "shop would be two columns of the result"),
        (of("count(*) AS pieces, max(pieces)"), "AS pieces is also a column of the record"),
        (of("count(window.middle)"), "window.start or window.end"),
        (COUNTED.replace("count(*) AS n", "count(*)"), r"name the result column: COUNT\(\*\) AS"),
        (COUNTED.replace("count(*) AS n", "shop AS n"), "select an aggregate"),
        (COUNTED.replace("shop, window.start AS begins, ", ""), "tell the results apart"),
        # types
        (of("sum(pieces * price)"), r"CAST the value, such as sum\(CAST\("),
        (of("sum(any_price)"), "numeric has no exact sum"),
        (of("max(clock)"), "Spark orders time without time zone otherwise"),
        (of("avg(long_price)"), r"exact up to 12 digits, and numeric\(20,2\) has more"),
        (of("sum(paid)"), "boolean has no exact sum"),
        # literals that sqlglot reads otherwise than Spark
        (of("count(*)", "WHERE at > TIMESTAMP '2026-03-01'"), r"write CAST\('2026-03-01' AS TIMESTAMP\)"),
        (of("count(*)", "WHERE ratio > 1.5D"), r"1.5D: write a CAST, such as CAST\(1.5 AS double\)"),
        (of("count(*)", "WHERE shop = 'it''s'"), "write one text between double quotes"),
        # functions and text
        (of("max(my_own(pieces))"), r"my_own\(\) is not among the functions"),
        (of("count(transform(array(1), x -> x))"), r"transform\(\) is not among the functions"),
        (of("sum("), "this is no SQL"),
        (f"{COUNTED}; {COUNTED}", "write FROM {records} once"),
        (of("count(*)", "WHERE shop = '{'"), "a brace that is no placeholder is written twice"),
        (f"INSERT INTO hits {COUNTED}", "write one SELECT"),
    ],
)
def test_what_epochs_cannot_compute_as_one_batch_is_refused_with_the_reason(query: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        pipeline(query)


MORE = PostgresTable(table="more", columns={"shop": "text"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sinks": sink(aggregated=False)}, "must be aggregated"),
        ({"sinks": sink(key="shop")}, "by key shop, begins"),
        ({"sinks": sink(columns={**(sink().columns or {}), "more": "text"})}, "exactly: begins, n, shop"),
        ({"sinks": [sink(), MORE]}, "more must be either into or too_late"),
        ({"record": {**RECORD, "window": "text"}}, "must not have a column window"),
    ],
)
def test_a_table_that_cannot_take_the_results_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        pipeline(**fields)


def test_results_may_go_into_a_topic() -> None:
    columns = dict(sink().columns or {})
    topic = KafkaTopic(topic="hits", value=Json(columns=columns), key=KEY, aggregated=True)

    (state,) = pipeline(sinks=topic, into="kafka:hits").states

    assert state.table == "hits_open"


def test_another_query_over_the_windows_that_are_open_is_refused() -> None:
    """The open windows hold the partial aggregates of the old one."""
    other = of("count(*)", "WHERE paid")

    assert effects(pipeline(), pipeline(other)) == {"windows.query": Effect.REFUSED}
    elsewhere = effects(pipeline(), pipeline(other, sink(table="more"), into="more"))
    assert elsewhere["windows.query"] == Effect.NEXT_EPOCH


def test_the_page_names_every_function_that_a_query_may_call_and_no_other() -> None:
    page = (ROOT / "docs" / "sql.md").read_text()
    listed = {
        subject: set(re.findall(r"`(\w+)`", names))
        for subject, names in re.findall(r"^\| (\w+) \| (`.*) \|$", page, re.M)
    }

    assert listed == {subject: set(names.split()) for subject, names in ROW_WISE_BY_SUBJECT.items()}
    assert [name for name in AGGREGATES if f"`{name}(" not in page] == []


def test_a_batch_and_a_stream_of_orders_have_one_text() -> None:
    """E10, E11: one constant, with the size of the window as its marker."""
    streaming = find("order_windows", ROOT / "dags" / "examples").windows

    assert isinstance(streaming, Query)
    assert streaming.query == ORDER_TOTALS
    assert 'args={"size": "1 day"}' in inspect.getsource(orders.totals)
