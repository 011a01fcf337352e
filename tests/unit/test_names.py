"""Derived names: made and parsed in one place, unique, and never longer than PostgreSQL takes (SEC-1)."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.declare.columns import is_reserved
from epochline.declare.names import (
    MAX_IDENTIFIER_BYTES,
    deleted_keys_table,
    order_column,
    split_table,
    staging_table,
)

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
