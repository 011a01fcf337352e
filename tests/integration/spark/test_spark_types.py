"""Each type of a column, with its extreme values, through a transform and a keyed state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

from epochline import PostgresTable, StateTable
from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type
from epochline.declare.columns import SUPPORTED, parse_type
from tests.databases import query
from tests.integration.bench import IN_PUBLIC
from tests.integration.spark.conftest import Runs, Servers
from tests.integration.type_values import COLUMNS, GOOD, LINEAGE, OWN, RECORD, TYPES

MODULE = '''
"""A parse that knows each record's values, and a transform that changes none."""

import pyarrow.compute as pc
from pyarrow import feather


def parse(batch):
    return feather.read_table("{file}").take(
        pc.subtract(batch.column("offset"), pc.multiply(pc.divide(batch.column("offset"), {rows}), {rows}))
    ).combine_chunks().to_batches()[0]


def same(records, state):
    kept = state["kept"]
    return {{"t": records, "back": kept, "kept": records.select(*kept.columns)}}
'''


def values_of(kind: str, given: Sequence[Any]) -> pa.Array[Any]:
    """The values of a type, cast one by one as they are of different Arrow types."""
    casts = [cast_column("v", pa.array([one], getattr(one, "type", None)), column_type(kind)) for one in given]
    assert [one.problems for one in casts] == [{}] * len(casts)
    return pa.concat_arrays([one.array for one in casts])


def as_given(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else None if value is None else str(value)


def test_each_type_passes_a_transform_and_a_state(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: what a transform and a state return unchanged is stored unchanged: time, BC, 294276, NaN, arrays, …"""
    own = {f"c{at}": kind for at, kind in enumerate(OWN)}
    assert {kind.partition("(")[0] for kind in own.values()} >= set(SUPPORTED)
    record, kinds = dict(own), dict(own)
    columns = {name: values_of(kind, [value for value, _ in OWN[kind]]) for name, kind in own.items()}
    shown: dict[str, list[str | None]] = {name: [text for _, text in OWN[kind]] for name, kind in own.items()}
    for name, kind in COLUMNS.items():
        if kind != "vector(3)":  # an extension
            record[name], kinds[name] = RECORD[name], kind
            columns[name] = values_of(RECORD[name], [as_given(value) for one, value, _ in GOOD if one == name])
            shown[name] = [text for one, _, text in GOOD if one == name]
    rows = max(map(len, columns.values()))
    padded = {name: pa.concat_arrays([one, pa.nulls(rows - len(one), one.type)]) for name, one in columns.items()}
    feather.write_feather(pa.table({"id": pa.array(range(rows), pa.int32()), **padded}), tmp_path / "values.arrow")
    (tmp_path / "types_of_tests.py").write_text(MODULE.format(file=tmp_path / "values.arrow", rows=rows))
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    query(servers.database.dsn, f"{TYPES} CREATE TABLE t (id int, {declared}, {LINEAGE})", options=IN_PUBLIC)
    kept = {"id": "int"} | {
        name: kind for name, kind in record.items()
        if kind == kinds[name] and not kind.startswith("json") and not parse_type(kind).by_text
    }  # fmt: skip
    line = Runs(servers, servers.pipeline(
        servers.topic({0: [b"x"] * rows}), parse="types_of_tests:parse", transform="types_of_tests:same",
        record={"id": "int", **record}, state=[StateTable(table="kept", key="id", columns=kept)],
        sinks=[PostgresTable(table="t"), PostgresTable(table="back", columns=kept, aggregated=True)],
    ))  # fmt: skip

    line.epoch()

    def stored(table: str, names: Sequence[str]) -> dict[str, list[Any]]:
        names = [name for name in names if name != "id"]
        listed = ", ".join(f"array_agg({name}::text ORDER BY id)" for name in names)
        [found] = servers.database.query(f"SELECT {listed} FROM {table}")
        return dict(zip(names, found, strict=True))

    expected = {name: [*texts, *[None] * (rows - len(texts))] for name, texts in shown.items()}
    assert stored("t", list(record)) == expected
    state = {name: expected[name] for name in record if name in kept}
    assert stored("kept", list(kept)) == state

    line.epoch({0: [b"x"] * rows})

    for table in ("kept", "back"):
        assert stored(table, list(kept)) == state
