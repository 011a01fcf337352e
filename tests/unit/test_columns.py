"""Column types by PostgreSQL's names, arrays of them, and derived names that are unique and never too long."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.arrow.cast.arrays import literals
from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type
from epochline.arrow.formats.avro import AvroReader
from epochline.arrow.formats.json_values import JsonReader
from epochline.arrow.formats.texts import JsonWriter
from epochline.config.registry import Registry, with_header
from epochline.declare.columns import BY_TEXT, SUPPORTED, Carrier, is_reserved, parse_type
from epochline.declare.names import MAX_IDENTIFIER_BYTES, deleted_keys_table, order_column, split_table, staging_table
from epochline.errors import ColumnMismatchError


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("int", "integer"), ("int2", "smallint"), ("int4", "integer"), ("int8", "bigint"), ("BIGINT", "bigint"),
        ("bool", "boolean"), ("float4", "real"), ("float", "double precision"), ("float8", "double precision"),
        ("varchar", "character varying"), ("varchar(20)", "character varying(20)"), ("string", "text"),
        ("character varying ( 20 )", "character varying(20)"), ("timestamp", "timestamp without time zone"),
        ("timestamptz", "timestamp with time zone"), ("time", "time without time zone"), ("decimal", "numeric"),
        ("decimal(12, 2)", "numeric(12,2)"), ("numeric(5)", "numeric(5,0)"), ("  Text ", "text"),
        ("int[]", "integer[]"), ("text [] [3]", "text[]"), ("varchar(3)[]", "character varying(3)[]"),
        ("timestamptz(0)", "timestamp(0) with time zone"), ("timestamp(6)", "timestamp(6) without time zone"),
        ("time (3) without time zone", "time(3) without time zone"), ("timetz", "time with time zone"),
        ("interval(2)", "interval(2)"), ("char", "character(1)"), ("char(3)", "character(3)"), ("bit", "bit(1)"),
        ("varbit", "bit varying"), ("varbit(5)", "bit varying(5)"), ("timestamp(3)[]", "timestamp(3) without time zone[]"),
    ],
)  # fmt: skip
def test_an_alias_is_read_as_the_type_it_stands_for(spelled: str, canonical: str) -> None:
    assert str(parse_type(spelled)) == canonical


@pytest.mark.parametrize("name", [one for one in (*SUPPORTED, *BY_TEXT) if one not in ("bit", "character")])
def test_a_canonical_name_is_read_as_itself(name: str) -> None:
    assert str(parse_type(name)) == name
    assert parse_type(str(parse_type(name))) == parse_type(name)


@given(precision=st.integers(1, 76), scale=st.none() | st.integers(0, 76))
def test_a_number_keeps_precision_and_scale(precision: int, scale: int | None) -> None:
    text = f"numeric({precision})" if scale is None else f"numeric({precision}, {scale})"

    kind = parse_type(text)

    assert (kind.precision, kind.scale, kind.carrier) == (precision, scale, Carrier.BINARY)
    assert parse_type(str(kind)).precision == precision


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cash", "unsupported type 'cash'; use one of: bigint"), ("int[", "unsupported type"),
        ("money(3)", "takes no modifier"), ("timestamptz(7)", "at most 6 digits"), ("bit(0)", "at least 1"),
        ("timestamptz with time zone", "unsupported type"), ("text; drop table x", "unsupported type"), ("", "unsupported type"),
        ("integer(4)", "integer takes no modifier"), ("text(4)", "text takes no modifier"),
        ("varchar(4,2)", "takes no modifier"), ("citext(3)", "takes no modifier"),
        ("numeric(0)", "precision must be between 1 and 76"), ("numeric(77)", "precision must be between 1 and 76"),
        ("numeric(5,77)", "the scale at most 76"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_carried_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_type(text)


@given(text=st.text(max_size=30))
def test_any_other_text_is_refused_and_never_half_read(text: str) -> None:
    try:
        kind = parse_type(text)
    except ValueError:
        return
    assert (kind.element or kind).name in {*SUPPORTED, *BY_TEXT}
    assert parse_type(str(kind)) == parse_type(str(parse_type(str(kind))))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
ELEMENTS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), TEXTS),
    "boolean": (pa.bool_(), st.booleans()),
    "double precision": (pa.float64(), st.floats()),
    "numeric(6,2)": (pa.decimal128(6, 2), st.decimals("-9999", "9999", places=2)),
    "bytea": (pa.binary(), st.binary(max_size=5)),
    "timestamp with time zone": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda one: one.replace(tzinfo=None))),
    "date": (pa.date32(), st.dates()),
    "time without time zone": (pa.time64("us"), st.times()),
}


@given(data=st.data(), kind=st.sampled_from(sorted(ELEMENTS)))
def test_an_array_is_read_back_as_it_was_written(data: st.DataObject, kind: str) -> None:
    """From lists to what travels, and from there through a transform, or through a topic's JSON."""
    arrow, values = ELEMENTS[kind]
    rows = data.draw(st.lists(st.none() | st.lists(st.none() | values, max_size=3), min_size=1, max_size=4))
    array = column_type(f"{kind}[]")

    once = cast_column("v", pa.array(rows, pa.list_(arrow)), array)

    assert once.problems == {}
    again = cast_column("v", once.array, array)
    assert (again.array, again.problems) == (once.array, {})
    lines, problems = JsonWriter({"v": array}).write(pa.record_batch([once.array], ["v"]))
    [column], more = JsonReader({"v": array}, {"v": ("v",)}).read_each([line or "" for line in lines.to_pylist()])
    assert (cast_column("v", column, array).array, problems, more) == (once.array, {}, {})
    assert literals(again.array, array).null_count == rows.count(None)


def test_a_slice_and_a_null_list_with_hidden_elements_show_only_their_own() -> None:
    offsets, mask = pa.array([0, 2, 4, 5], pa.int32()), pa.array([False, True, False])
    hidden = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4, 5]), mask=mask)

    assert cast_column("v", hidden.slice(1), column_type("int[]")).array.to_pylist() == [None, "[5]"]


def test_an_array_of_another_arrow_type_is_a_mistake_of_the_function_and_not_of_a_record() -> None:
    with pytest.raises(ColumnMismatchError, match=r"column v: Arrow's int64 cannot be cast to integer\[\]"):
        cast_column("v", pa.array([1]), column_type("int[]"))


class OneSchema:
    def __init__(self, items: Any) -> None:
        field = {"name": "v", "type": ["null", {"type": "array", "items": items}]}
        self.parsed = fastavro.parse_schema({"type": "record", "name": "r", "fields": [field]})

    def schema(self, schema_id: int) -> Any:
        return self.parsed


@pytest.mark.parametrize(("items", "kind", "value", "carried"), [
    (["null", "long"], "bigint[]", [1, None, 2**62], f"[1,null,{2**62}]"),
    ("string", "text[]", ['a"', ""], '["a\\"",""]'),
    ("bytes", "bytea[]", [b"\0\xff"], '["AP8="]'),
    ("double", "float8[]", [0.5, float("nan")], '[0.5,"NaN"]'),
    ({"type": "array", "items": "int"}, "int[]", [[1, 2], [3, 4]], "[[1,2],[3,4]]"),
    ("int", "int[]", [], "[]"), ("int", "int[]", None, None),
    ({"type": "array", "items": "int"}, "int[]", [[1], [2, 3]], "the lists within the array differ"),
    ("string", "int[]", ["x"], "an element of Avro does not fit integer"),
    ("long", "int[]", [2**40], "does not fit integer"),
])  # fmt: skip
def test_an_array_of_avro_is_an_array(items: Any, kind: str, value: Any, carried: str | None) -> None:
    registry = OneSchema(items)
    body = BytesIO()
    fastavro.schemaless_writer(body, registry.parsed, {"v": value})
    reader = AvroReader({"v": column_type(kind)}, cast("Registry", registry))

    [column], problems, _ = reader.read(pa.array([with_header(1, body.getvalue())]), pa.array([None], pa.binary()))

    if problems:
        assert carried is not None
        assert carried in problems[0]
        assert column.to_pylist() == [None]
    else:
        assert column.to_pylist() == [carried]


HOSTILE = {
    "249 characters": "x" * 249,
    "quotes": 'a"b; drop table x --',
    "dots": "a.b.c.",
    "unicode": "заказы-注文-🧾",
    "percent": "50%s off",
    "empty hint": "---",
    "upper case": "ORDERS",
}


texts = st.text(min_size=1, max_size=260).filter(lambda text: "\0" not in text)
ids = st.integers(1, 2**63 - 1)
STAGING = re.compile(r"stg_[a-z0-9_]{0,20}_(?P<digest>[0-9a-f]{10})_e(?P<epoch>\d+)_a(?P<attempt>\d+)")


@given(pipeline=texts, sink=texts, epoch_id=ids, attempt=st.integers(1, 2**31 - 1))
def test_a_staging_table_tells_its_sink_epoch_and_attempt(
    pipeline: str, sink: str, epoch_id: int, attempt: int
) -> None:
    name, first = staging_table(pipeline, sink, epoch_id, attempt), staging_table(pipeline, sink, 1, 1)

    assert STAGING.fullmatch(name)
    assert name == first.removesuffix("_e1_a1") + f"_e{epoch_id}_a{attempt}"


@given(pipeline=texts, sink=texts)
def test_a_derived_name_is_never_cut_by_postgresql(pipeline: str, sink: str) -> None:
    """Also a pipeline's ten thousandth million epoch; ids beyond are not reached in practice."""
    for name in (staging_table(pipeline, sink, 10**12, 10**4), deleted_keys_table(pipeline, sink), order_column(sink)):
        assert len(name.encode()) <= MAX_IDENTIFIER_BYTES


@pytest.mark.parametrize("sink", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("pipeline", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_give_plain_ones(pipeline: str, sink: str) -> None:
    """SEC-1: nothing of a name needs quoting in what is derived from it."""
    name = staging_table(pipeline, sink, 1, 1)

    assert STAGING.fullmatch(name)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


@given(one=st.tuples(texts, texts, ids, ids), other=st.tuples(texts, texts, ids, ids))
def test_two_stagings_never_share_a_table(one: tuple[str, str, int, int], other: tuple[str, str, int, int]) -> None:
    assert (staging_table(*one) == staging_table(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b.c"), ("a", "c")),
        (("a", "orders"), ("b", "orders")),
        (("ab", "c"), ("a", "bc")),
        (("a", "x" * 63), ("a", "x" * 62 + "y")),
        (("a", "Orders"), ("a", "orders")),
    ],
    ids=["schema", "pipeline", "moved boundary", "differs late", "case"],
)
def test_names_that_look_alike_stay_apart(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert staging_table(*one, 1, 1) != staging_table(*other, 1, 1)
    assert deleted_keys_table(*one) != deleted_keys_table(*other)


@given(column=st.text(min_size=1, max_size=63), other=st.text(min_size=1, max_size=63))
def test_order_columns_of_two_columns_stay_apart(column: str, other: str) -> None:
    assert (order_column(column) == order_column(other)) == (column == other)
    assert order_column(column).startswith("_order_")


@pytest.mark.parametrize(
    ("table", "parts"),
    [("orders", ("public", "orders")), ("shop.orders", ("shop", "orders")), ("shop.a.b", ("shop", "a.b"))],
)
def test_the_first_dot_separates_schema_and_table(table: str, parts: tuple[str, str]) -> None:
    assert split_table(table) == parts


PRODUCT = Path(__file__).parents[2] / "include" / "epochline"
A_COLUMN = re.compile(r"""["'](_[a-z]+(?:_[a-z]+)*)["']|\bAS (_[a-z_]+)|\b[a-z]\.(_[a-z]+)\b""")
NO_COLUMNS = {"_quarantine", "_parse", "_open"}
"""A sink, the parse among the sinks of an attempt, the end of a table's name."""


def test_only_names_that_epochline_uses_for_columns_are_reserved() -> None:
    """MongoDB's ``_id`` is an ordinary column; a name that meets the user's columns anywhere is none."""
    used = {
        name
        for part in ("arrow", "audit", "declare", "lookup", "postgres", "spark")
        for file in (PRODUCT / part).rglob("*.[ps][yq]*")
        if file.suffix in (".py", ".sql")
        for found in A_COLUMN.findall(file.read_text())
        for name in found
        if name
    }

    assert {name for name in used - NO_COLUMNS if not is_reserved(name)} == set()
    assert {"_offset", "_tombstone", "_kind", "_existed", "_number"} <= used
    assert not any(map(is_reserved, ("_id", "_class", "__v", "_1", "_order", "_ordering", "_rev", "_source", "id")))
    assert all(map(is_reserved, ("_Offset", "_ORDER_at", order_column("at"), order_column("x" * 99))))
