"""Every type through every format of files, and back by those who read them: Arrow, COPY, the parser `Json`."""

import base64
import json
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import psycopg2
import pyarrow as pa
import pyarrow.parquet
import pytest

from epochline.arrow.cast.casting import cast_column
from epochline.arrow.cast.types import column_type, record_schema
from epochline.arrow.formats.json_values import JsonReader
from epochline.declare.columns import SUPPORTED
from epochline.declare.external import Files
from epochline.drill.shown import rows_of_files
from epochline.protocol.sink import Committable, SinkAttempt, WrittenPart
from epochline.sinks.file_manifest import committed_files
from epochline.sinks.files import FileSink

# By type, values as their Arrow column holds them, hostile ones first.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "smallint": [-32768, 32767],
    "integer": [-2147483648, 2147483647],
    "bigint": [-(2**63), 2**63 - 1],
    "real": [3.4028234663852886e38, -0.0, 0.10000000149011612],
    "double precision": [5e-324, 1.7976931348623157e308, 0.1, 2.0**53],
    "numeric(12,2)": [Decimal("9999999999.99"), Decimal("-0.05")],
    "numeric(50,20)": [Decimal("1E-20"), Decimal("123456789012345678901234567890") + Decimal("0.00000000000000000001")],
    "numeric": ["123456789012345678901234567890.000000000000000000001", "-0.5", "NaN"],
    "text": ["", "a,b", 'quote " and \\', "line\nbreak\r\n", "tab\t\x01", "ü 漢 🚀", "null", "\u2028"],
    "varchar(3)": ["", "üüü"],
    "bytea": [b"", b'\x00\xff\n,"', "ü".encode()],
    "date": [date(1970, 1, 1), date(9999, 12, 31), date(1, 1, 1)],
    "timestamp": [datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(1, 1, 1)],  # noqa: DTZ001
    "timestamptz": [datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), datetime(1969, 12, 31, tzinfo=UTC)],
    "time": [time(23, 59, 59, 999999), time(0, 0)],
    "json": ['{"a" :\n [1, "x\\ny"]}', '"text"', "null", "1.50"],
    "jsonb": ['{"b": null}', "[]"],
    "uuid": ["3f1c1de2-5dc9-4f8c-93a5-0e2f1a1f9b11"],
    "inet": ["10.0.0.1", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "interval": ["1 day 02:03:04.5"],
}
Columns = dict[str, str]
COLUMNS = {f"c {at}": kind for at, kind in enumerate(VALUES)}
MOST = max(len(values) for values in VALUES.values())


def padded(kind: str) -> list[Any]:
    """The values of a type, then NULLs: as many as the longest column has, and one more."""
    return [*VALUES[kind], *[None] * (MOST + 1 - len(VALUES[kind]))]


def rows() -> pa.RecordBatch:
    columns = {name: padded(kind) for name, kind in COLUMNS.items()}
    return pa.RecordBatch.from_pydict(columns, schema=record_schema(COLUMNS))


def written(tmp_path: Path, kind: str, columns: Columns, *batches: pa.RecordBatch, aggregated: bool = True) -> Path:
    """The one file of an epoch with these rows."""
    path = tmp_path / kind
    sink = FileSink(Files(path=str(path), format=kind, columns=columns, aggregated=aggregated).spec)
    attempt = SinkAttempt(pipeline="types", generation=1, epoch_id=1, attempt=1, token="0f3c8a52")
    sink.begin(attempt)
    writer = sink.write(attempt, 0)
    for batch in batches:
        writer.write(batch)
    part = WrittenPart(number=0, rows=sum(batch.num_rows for batch in batches), message=writer.finish())
    writer.close()
    sink.commit(Committable(attempt=attempt, rows=part.rows, body=sink.seal(attempt, [part])))
    [epoch] = committed_files(str(path))
    [file] = epoch.files
    return Path(file)


def test_every_type_is_tried() -> None:
    assert {column_type(kind).name for kind in VALUES} == set(SUPPORTED)


def test_parquet_gives_back_what_was_written(tmp_path: Path) -> None:
    """P5: values, NULLs and types."""
    file = written(tmp_path, "parquet", COLUMNS, rows(), rows())

    assert pyarrow.parquet.ParquetFile(file).read().equals(pa.Table.from_batches([rows(), rows()]))


def test_parquet_has_few_row_groups_and_none_that_is_huge(tmp_path: Path) -> None:
    """Small batches share one, and a writer holds no more than a group in memory."""
    schema = record_schema({"v": "bytea"})
    batch = pa.RecordBatch.from_pydict({"v": [bytes([row % 256]) * 1000 for row in range(1000)]}, schema=schema)

    file = pyarrow.parquet.ParquetFile(written(tmp_path, "parquet", {"v": "bytea"}, *[batch] * 40))

    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert sum(groups) == 40_000
    assert 2 <= len(groups) <= 4


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_drill_tells_rows_apart(kind: Literal["parquet", "csv", "json"], tmp_path: Path) -> None:
    """P5: no reader guesses types: documents fit no column, NULL is no empty text, and no digit is lost."""
    columns = {"amount": "numeric", "name": "text", "document": "jsonb"}
    amounts = ["0.12345678901234567890", *["0.12345678901234567891"] * 3]
    batch = pa.RecordBatch.from_pydict(
        {"amount": amounts, "name": ["", "", None, None], "document": [*['{"a": 1}'] * 3, '{"a": ["1"]}']},
        schema=record_schema(columns),
    )
    written(tmp_path, kind, columns, batch.slice(3), batch)

    found = rows_of_files(Files(path=str(tmp_path / kind), format=kind, columns=columns, aggregated=True))

    assert sorted(found.values()) == [1, 1, 1, 2]


def test_csv_gives_copy_what_was_written(tmp_path: Path, postgres_dsn: str) -> None:
    """P5: the empty text stays apart from NULL, and bytes are bytes; what PostgreSQL reads is compared by itself."""
    file = written(tmp_path, "csv", COLUMNS, rows(), rows())

    with closing(psycopg2.connect(postgres_dsn)) as connection, connection.cursor() as cursor:
        declared = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
        cursor.execute(f"CREATE TABLE t (n serial, {declared})")
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        with file.open("rb") as text:
            cursor.copy_expert(f"COPY t ({names}) FROM STDIN WITH (FORMAT csv, HEADER match)", text)
        for name, kind in COLUMNS.items():
            type_ = "text" if kind == "json" else kind  # json has no equality
            same = f'"{name}"::{type_} IS NOT DISTINCT FROM CAST(%s AS {type_})'
            for at, value in enumerate(padded(kind) * 2, 1):
                cursor.execute(f'SELECT {same}, "{name}"::text FROM t WHERE n = %s', (value, at))
                ((equal, found),) = cursor.fetchall()
                assert equal, f"{kind}: {value!r} was read as {found!r}"


def test_json_gives_the_parser_what_was_written(tmp_path: Path) -> None:
    """P5: one object a line, and what another pipeline's `Json` makes of it, which takes no NaN (docs/poison.md)."""
    columns = {name: kind for name, kind in COLUMNS.items() if kind not in ("json", "numeric")}
    lines = written(tmp_path, "json", columns, rows().select(list(columns))).read_text().removesuffix("\n").split("\n")
    assert len(lines) == MOST + 1

    kinds = {name: column_type(kind) for name, kind in columns.items()}
    columns_read, problems = JsonReader(kinds, {name: (name,) for name in kinds}).read(pa.array(lines))

    assert problems == {}
    for (name, kind), column in zip(kinds.items(), columns_read, strict=True):
        cast = cast_column(name, column, kind)
        assert cast.problems == {}
        expected = rows().column(name).to_pylist()
        if kind.name == "jsonb":
            expected = [value and value.replace(" ", "") for value in expected]
        assert cast.array.to_pylist() == expected, name


def test_json_lines_are_plain_json(tmp_path: Path) -> None:
    """Documents are embedded, their line breaks taken out; what JSON has no number for is a text."""
    columns = {"j": "json", "f": "double precision", "r": "real", "b": "bytea", "t": "timestamptz", "n": "numeric"}
    values = {
        "j": ['{"a" :\r\n [1, "x\\ny"]}', "null", None], "f": [float("nan"), float("-inf"), 1.5],
        "r": [float("inf"), None, -0.5], "b": [b"\x00\xff", b"", None],
        "t": [datetime(2024, 2, 29, 12, tzinfo=UTC), None, None], "n": ["NaN", "1.10", None],
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(values, schema=record_schema(columns))

    lines = written(tmp_path, "json", columns, batch).read_text().splitlines()

    assert '"n":1.10' in lines[1]
    assert [json.loads(line, parse_float=str) for line in lines] == [
        {
            "j": {"a": [1, "x\ny"]}, "f": "NaN", "r": "Infinity", "b": base64.b64encode(b"\x00\xff").decode(),
            "t": "2024-02-29T12:00:00.000000Z", "n": "NaN",
        },
        {"j": None, "f": "-Infinity", "r": None, "b": "", "t": None, "n": "1.10"},
        {"j": None, "f": "1.5", "r": "-0.5", "b": None, "t": None, "n": None},
    ]  # fmt: skip


def test_rows_of_records_carry_their_position(tmp_path: Path) -> None:
    values = {"v": ["a"], "_topic": ["visits"], "_partition": [3], "_offset": [2**40], "_row": [0]}
    columns = Files(path="/nowhere", columns={"v": "text"}).written
    batch = pa.RecordBatch.from_pydict(values, schema=record_schema(columns))

    kinds = ("parquet", "csv", "json")
    parquet, csv, lines = (written(tmp_path, kind, {"v": "text"}, batch, aggregated=False) for kind in kinds)

    assert pyarrow.parquet.ParquetFile(parquet).read().to_pydict() == values
    assert csv.read_text() == '"v","_topic","_partition","_offset","_row"\n"a","visits",3,1099511627776,0\n'
    assert lines.read_text() == '{"v":"a","_topic":"visits","_partition":3,"_offset":1099511627776,"_row":0}\n'
