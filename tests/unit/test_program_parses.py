"""What the parses of the example programs take, and what is an error of its own record (E10, E11, F28)."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import all_but_15
from epochline.config.discovery import find
from epochline.declare.specs import load_function
from epochline_examples.producers import PRODUCERS
from pipelines import ip_count, orders, raw_value, sink_comparison
from tests.commands import python
from tests.reading import source_batch
from tests.unit.partitions import tp

ROOT = Path(__file__).parents[2]
TIME = datetime(2026, 3, 1, tzinfo=UTC)


def batch(*values: bytes | None, first: int = 0) -> pa.RecordBatch:
    return source_batch(tp(), range(first, first + len(values)), values, timestamp=[TIME] * len(values))


# What the examples' producers write is what their programs read.


@pytest.mark.parametrize(
    ("name", "program"), [("numbers", "restart_demo"), ("visits", "ip_count"), ("orders", "order_windows")]
)
def test_the_program_s_own_parse_takes_every_line(name: str, program: str) -> None:
    """E5b, E8, E11."""
    pipeline = find(program, ROOT / "dags" / "examples")
    assert isinstance(pipeline.parse, str)
    lines = [line.encode() for line in itertools.islice(PRODUCERS[name](), 20)]

    parsed = load_function(pipeline.parse)(batch(*lines))

    assert parsed.num_rows == 20
    errors = parsed.column("_error") if "_error" in parsed.schema.names else pa.nulls(20)
    assert errors.null_count == 20
    assert all(parsed.column(column).null_count == 0 for column in pipeline.record or {})


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_producer_ends_after_a_thousand_lines_unless_somebody_says_otherwise(name: str) -> None:
    """X16."""
    said = python("-m", "epochline_examples.producers", name, cwd=ROOT / "include").stdout

    assert len(said.splitlines()) == 1000


# The IP count: both forms of a line, and days that do not exist.


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        (b"2019-09-15_10:00:00 192.168.1.1", datetime(2019, 9, 15, 10, tzinfo=UTC)),
        (b'192.168.1.1 - - [28/Feb/2015:23:54:34 +0530] "GET /"', datetime(2015, 2, 28, 18, 24, 34, tzinfo=UTC)),
        (b"2019-02-30_10:00:00 192.168.1.1", None),
        (b'192.168.1.1 - - [30/Feb/2015:00:54:34 +0530] "GET /"', None),
        (b"neither", None),
    ],
)
def test_a_day_that_does_not_exist_is_the_record_s_error(line: bytes, moment: datetime | None) -> None:
    """E5, E5b: such a line is set aside, and counted on no other day."""
    (row,) = ip_count.parse(batch(line)).to_pylist()

    assert row["visited_at"] == moment
    assert (row["_error"] is None) == (moment is not None)


# The shapes in which the raw-value program takes a number.


@pytest.mark.parametrize(
    "value", [b"15", b'"15"', b'{"value":"15"}', b'{"value":15}', b' {"value": " 15 "} ', b'"+15"', b'"015"']
)
def test_every_shape_of_fifteen_is_fifteen(value: bytes) -> None:
    """X2."""
    assert raw_value.parse(batch(value)).to_pylist() == [{"value": "15", "_error": None}]
    assert all_but_15.parse(batch(value)).to_pylist() == [{"value": None, "_error": "15 is set aside"}]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"fifteen", b'"fifteen"', b"1.5", b"true", b"null", b"[15]", b"{}", b'{"value":null}', b"\xff\xfe",
     b'{"value":{"value":"15"}}', b'"15\\u0000"'],
)  # fmt: skip
def test_what_is_no_number_is_the_records_error(value: bytes | None) -> None:
    """X2, F28."""
    (row,) = raw_value.parse(batch(value)).to_pylist()

    assert row["value"] is None
    assert "is not a number" in row["_error"]


# The tuples of the sink comparison, and the id that each is given.


def indicating(number: int) -> bytes:
    return json.dumps({"key1": "a", "key2": "b", "key3": "c", "indicate": number}).encode()


def test_each_key_is_its_own_and_the_time_is_the_records() -> None:
    """X8: the third key, where the second one stood by mistake."""
    (row,) = sink_comparison.parse(batch(indicating(7))).drop_columns(["uuid"]).to_pylist()

    assert row == {"slot_time": TIME, "key1": "a", "key2": "b", "key3": "c", "indicate": 7, "_error": None}


def test_an_id_belongs_to_a_records_place_and_to_nothing_else() -> None:
    """X23: the same whenever it is read, in whatever batch; another for a record that is equal."""
    values = [indicating(7), indicating(7), indicating(8)]
    whole = sink_comparison.parse(batch(*values)).column("uuid").to_pylist()

    assert len(set(whole)) == 3
    assert sink_comparison.parse(batch(*values[1:], first=1)).column("uuid").to_pylist() == whole[1:]


# A bad row takes no other with it.

ORDER = b'{"orderId": "a", "userId": 1, "money": 1, "createTime": 1}'
LINE = b"1,zhangsan,2018-10-20 15:30,358.5"
NO_ORDERS = [
    ORDER.replace(b'"money": 1', b'"money": 1e999'), ORDER.replace(b'"money": 1', b'"money": 1.9'),
    ORDER.replace(b'"userId": 1', b'"userId": true'), ORDER.replace(b'"userId": 1', b'"userId": 99999999999999999999'),
    ORDER.replace(b'"createTime": 1', b'"createTime": 99999999999999999999'), ORDER.replace(b'"a"', b'"\\ud800"'),
    b"[" * 100_000, b"",
]  # fmt: skip
NO_LINES = [b"1,zhangsan", b"x,zhangsan,2018-10-20 15:30,358.5", b'1,"', b"\xff,a,b,c", b"9" * 30]
NO_TUPLES = [
    None, b"no json", b"[]", b"[" * 100_000, b'{"key1": "a"}', indicating(1).replace(b'"a"', b'"\\ud800"'),
    indicating(1).replace(b'"a"', b"1"),
    *(indicating(1).replace(b" 1}", b" %s}" % number) for number in
      (b"1e999", b"Infinity", b"NaN", b"99999999999999999999", b"1.9", b"true", b"null", b'"many"')),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "good", "bad", "column"),
    [
        *((orders.parse_json, ORDER, one, "money") for one in NO_ORDERS),
        *((orders.parse_csv, LINE, one, "money") for one in NO_LINES),
        *((sink_comparison.parse, indicating(1), one, "indicate") for one in NO_TUPLES),
    ],
)
def test_what_is_no_record_of_the_program_is_an_error_of_its_own_row(
    parse: Callable[[pa.RecordBatch], pa.RecordBatch], good: bytes, bad: bytes | None, column: str
) -> None:
    wrong, row = parse(batch(bad, good)).to_pylist()

    assert wrong["_error"]
    assert wrong[column] is None
    assert row["_error"] is None
    assert str(row[column]) in good.decode()
