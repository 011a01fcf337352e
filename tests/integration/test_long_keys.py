"""A key that no index of PostgreSQL takes is a bad record like any other, up to the last byte that one takes."""

import random
import string
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from epochline import Json, PostgresTable
from epochline.arrow.stage.rows import KEY_BYTES, too_long
from epochline.errors import BadRecordError
from tests.contract.worlds import orders
from tests.integration.in_process import InProcess, over_records

RECORD = {"k": "text", "id": "bigint", "other": "text", "v": "integer"}


def incompressible(size: int) -> str:
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


def pipeline_of(dsn: str, values: list[dict[str, Any]], policy: str = "quarantine", **sink: Any) -> InProcess:
    sinks = [PostgresTable(**{"table": "t", "columns": RECORD, "mode": "upsert", **sink})]
    return over_records(dsn, orders(parse=Json(columns=RECORD), bad_records=policy, sinks=sinks), values)


@pytest.mark.fault("F28")
@pytest.mark.parametrize(
    ("key", "fits"),
    [
        (("k",), lambda size: {"k": incompressible(size)}),
        (("k", "id"), lambda size: {"k": incompressible(size - 16)}),
        (("k", "other"), lambda size: {"k": incompressible(size - 1008), "other": incompressible(1000)}),
    ],
    ids=["one column", "with a number", "two texts"],
)
@pytest.mark.parametrize("mode", ["upsert", "add"])
def test_a_key_too_long_for_its_index_is_quarantined_and_the_longest_is_a_row(
    postgres_dsn: str, key: tuple[str, ...], fits: Callable[[int], dict[str, Any]], mode: str
) -> None:
    """INV-9: the commit could not have written it, and would have held up every later epoch."""
    plain = {"id": 1, "other": "x", "v": 1}
    values = [{**plain, "k": "short"}, {**plain, **fits(KEY_BYTES)}, {**plain, **fits(KEY_BYTES + 1)}]
    options: dict[str, Any] = {"mode": mode, "key": key}
    if mode == "add":
        options |= {"columns": {name: RECORD[name] for name in (*key, "v")}, "measures": ("v",)}
    it = pipeline_of(postgres_dsn, values, **options)

    receipt = it.epoch()

    assert (receipt.epoch.counts.quarantined, receipt.epoch.rows_written) == (1, 2)
    size = KEY_BYTES + 1 - sum({"id": 16, "other": 8}.get(one, 0) for one in key)
    said = f"t: the key ({', '.join(key)}) has {size} bytes, more than an index of PostgreSQL takes ({KEY_BYTES})"
    assert it.sql('SELECT "offset", reason FROM epochline.quarantine') == [(2, said)]


def test_under_the_policy_fail_the_record_is_named_and_its_key_is_not_shown(postgres_dsn: str) -> None:
    long = incompressible(9000)
    it = pipeline_of(postgres_dsn, [{"k": long, "id": 1, "other": "x", "v": 1}], "fail", key="k")

    with pytest.raises(BadRecordError, match=r"orders-0 offset 0: t: the key \(k\) has 9000 bytes") as raised:
        it.epoch()

    assert long[:20] not in str(raised.value)


def test_keys_of_fixed_length_are_never_too_long() -> None:
    assert too_long([pa.array([1, None]), pa.array([2.5, None])]) == {}
    assert too_long([]) == {}
    assert too_long([pa.array(["ä" * 1347, None, "x"])]) == {0: 2694}
