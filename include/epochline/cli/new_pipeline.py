"""The files of a new pipeline: its declaration, its test, a sample record, and a parse function if it needs one. Pure.

`NewPipeline` holds the answers, `declared` checks them as the declaration's own classes do, and `files` writes texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from epochline.declare.columns import parse_type
from epochline.declare.parsers import Json, Regex, Text
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.table import PostgresTable
from epochline.errors import DeclarationError

Parser = Literal["json", "csv", "text", "function"]
Mode = Literal["append", "upsert", "add"]

_SUFFIX = {"json": "jsonl", "csv": "csv", "text": "txt", "function": "txt"}
_WIDEST = 110
_FIELDS = (
    "# An empty field is NULL. A value in quotes is a bad record: if your fields have quotes, write a parse function.",
    """FIELDS = ",".join(rf'(?P<{name}>[^,"]+)?' for name in COLUMNS)""",
    "",
)
"""The pattern of CSV, in a declaration."""

# Per type: the value in JSON, as text, and in Python. Longer texts are cut to the type's length.
_SAMPLES = {
    "boolean": ("true", "true", "True"),
    **dict.fromkeys(("smallint", "integer", "bigint"), ("1", "1", "1")),
    **dict.fromkeys(("real", "double precision"), ("1.5", "1.5", "1.5")),
    "numeric": ("1", "1", '"1"'),
    "bytea": ('"YWRh"', "ada", 'b"ada"'),
    "date": ('"2026-03-01"', "2026-03-01", "date(2026, 3, 1)"),
    "timestamp without time zone": (
        '"2026-03-01T12:00:00"', "2026-03-01T12:00:00", 'datetime.fromisoformat("2026-03-01T12:00:00")',
    ),
    "timestamp with time zone": (
        '"2026-03-01T12:00:00Z"', "2026-03-01T12:00:00Z", "datetime(2026, 3, 1, 12, 0, tzinfo=UTC)",
    ),
    "time without time zone": ('"12:00:00"', "12:00:00", "time(12, 0)"),
    **dict.fromkeys(("json", "jsonb"), ("[1]", "[1]", '"[1]"')),
    "uuid": ('"00000000-0000-4000-8000-000000000001"', "00000000-0000-4000-8000-000000000001",
             '"00000000-0000-4000-8000-000000000001"'),
    "inet": ('"192.0.2.1"', "192.0.2.1", '"192.0.2.1"'),
    "cidr": ('"192.0.2.0/24"', "192.0.2.0/24", '"192.0.2.0/24"'),
    "macaddr": ('"08:00:2b:01:02:03"', "08:00:2b:01:02:03", '"08:00:2b:01:02:03"'),
    "interval": ('"1 day"', "1 day", '"1 day"'),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPipeline:
    """The answers that describe a new pipeline."""

    name: str
    topic: str
    parser: Parser
    columns: Mapping[str, str]
    table: str
    mode: Mode
    key: tuple[str, ...]
    schedule: str | None

    @property
    def stem(self) -> str:
        """The pipeline's name as a name of files and modules."""
        return stem_of(self.name)

    @property
    def measures(self) -> tuple[str, ...]:
        """The columns that mode ``add`` sums: all but the key."""
        return tuple(name for name in self.columns if name not in self.key) if self.mode == "add" else ()


def stem_of(name: str) -> str:
    """A pipeline's name as a name of files, modules and tables."""
    return re.sub(r"\W", "_", name)


def columns_of(text: str) -> dict[str, str]:
    """Columns as SQL writes them: ``id bigint, amount numeric(12,2)``.

    Raises:
        ValueError: a column has no type, or two columns have one name.
    """
    columns: dict[str, str] = {}
    for one in re.split(r",(?![^(]*\))", text):
        name, _, kind = one.strip().partition(" ")
        if not kind.strip():
            raise ValueError(f"{one.strip()!r} has no type; write columns as in: id bigint, amount numeric(12,2)")
        if name in columns:
            raise ValueError(f"two columns are called {name!r}")
        columns[name] = kind.strip()
    return columns


def declared(new: NewPipeline) -> Pipeline:
    """The declaration, with a ready-made parser in the place of a function that does not exist yet.

    Raises:
        DeclarationError: an answer is invalid.
    """
    parse: Json | Regex | Text
    if new.parser == "csv":
        parse = Regex(pattern=_csv_pattern(new), columns=dict(new.columns))
    elif new.parser == "text":
        if [str(parse_type(kind)) for kind in new.columns.values()] != ["text"]:
            raise DeclarationError("the parser text gives one column of type text; write one, as in: line text")
        parse = Text(column=next(iter(new.columns)))
    else:
        parse = Json(columns=dict(new.columns))
    return Pipeline(
        name=new.name,
        source=KafkaSource(topics=new.topic, startup="earliest"),
        parse=parse,
        sinks=PostgresTable(
            table=new.table, mode=new.mode, key=new.key, measures=new.measures, columns=dict(new.columns)
        ),
        bad_records="quarantine",
        schedule=new.schedule,
    )


def files(new: NewPipeline, dags: str) -> dict[str, str]:
    """The texts of the files by name: ``dag``, ``test``, ``sample``, and ``function`` if the parser is one.

    Args:
        new: checked answers.
        dags: name of the DAGs folder, next to the folder of the tests.

    Raises:
        DeclarationError: an answer is invalid.
    """
    made = {"dag": _dag(new, declared(new).schedule), "test": _test(new, dags), "sample": _sample(new) + "\n"}
    return made | ({"function": _function(new)} if new.parser == "function" else {})


def sample_name(new: NewPipeline) -> str:
    """Name of the sample's file."""
    return f"{new.stem}_sample.{_SUFFIX[new.parser]}"


def _dag(new: NewPipeline, schedule: Any) -> str:
    parse = {
        "json": "Json(columns=COLUMNS)",
        "csv": "Regex(pattern=FIELDS, columns=COLUMNS)",
        "text": f"Text(column={_quoted(next(iter(new.columns)))})",
        "function": f"{_quoted(f'pipelines.{new.stem}:parse')},\n    record=COLUMNS",
    }[new.parser]
    imported = sorted({"KafkaSource", "Pipeline", "PostgresTable", *re.findall("^[A-Z][a-z]+", parse)})
    sink = [f"table={_quoted(new.table)}"]
    if new.mode != "append":
        sink += [f"mode={_quoted(new.mode)}", f"key={_names(new.key)}"]
    if new.measures:
        sink.append(f"measures={_names(new.measures)}")
    timed = isinstance(schedule, timedelta)
    lines = [
        f'"""The pipeline {new.name}: records of Kafka into PostgreSQL, exactly once."""', "",
        *(["from datetime import timedelta", ""] if timed else []),
        f"from epochline import {', '.join(imported)}, epoch_dag", "",
        *_dictionary("COLUMNS", new.columns), "",
        *(_FIELDS if new.parser == "csv" else []),
        "pipeline = Pipeline(",
        f"    name={_quoted(new.name)},",
        f"    source=KafkaSource(topics={_quoted(new.topic)}, startup=\"earliest\"),",
        f"    parse={parse},",
        f"    sinks=PostgresTable({', '.join([*sink, 'columns=COLUMNS'])}),",
        '    bad_records="quarantine",',
        *([f"    schedule={_schedule(schedule)},"] if schedule is not None else []),
        ")", "",
        "dag = epoch_dag(pipeline)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _test(new: NewPipeline, dags: str) -> str:
    expected = {name: _of_type(kind)[2] for name, kind in new.columns.items()}
    text = " ".join(expected.values())
    names = [name for name in ("UTC", "date", "datetime", "time") if re.search(rf"\b{name}[(,.)]", text)]
    imports = [f"from datetime import {', '.join(names)}"] if names else []
    imports += ["from decimal import Decimal"] if "Decimal(" in text else []
    rows = "\n".join(f"    {_quoted(name)}: {value}," for name, value in expected.items())
    return f'''"""The rows that {new.name} makes of records. Put records of your own into {sample_name(new)}."""

{chr(10).join([*imports, "from pathlib import Path"])}

from epochline.config.discovery import find
from epochline.testing import parse_values

FOLDER = Path(__file__).parent
PIPELINE = find({_quoted(new.name)}, FOLDER.parent / {_quoted(dags)})
SAMPLE = (FOLDER / {_quoted(sample_name(new))}).read_bytes().splitlines()
ROW = {{
{rows}
}}


def test_the_sample_record_becomes_a_row() -> None:
    parsed = parse_values(PIPELINE, SAMPLE)

    assert parsed.refused == []
    assert [{{name: row[name] for name in ROW}} for row in parsed.rows] == [ROW]


def test_a_record_in_another_format_is_refused() -> None:
    parsed = parse_values(PIPELINE, [b"\\xff"])

    assert parsed.rows == []
    assert len(parsed.refused) == 1
'''


def _function(new: NewPipeline) -> str:
    names = ", ".join(map(_quoted, new.columns)) + ("," if len(new.columns) == 1 else "")
    columns = f"COLUMNS = ({names})"
    if len(columns) > _WIDEST:
        columns = "\n".join(["COLUMNS = (", *(f"    {_quoted(name)}," for name in new.columns), ")"])
    return f'''"""Parses the records of {new.name}: fields between semicolons, until you write your own format here."""

import pyarrow as pa

{columns}


def parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns one row per record, in order. A text in _error makes a bad record."""
    rows = [fields(value) for value in batch.column("value").to_pylist()]
    columns = {{name: pa.array([row.get(name) for row in rows], pa.string()) for name in (*COLUMNS, "_error")}}
    return pa.record_batch(columns)


def fields(value: bytes | None) -> dict[str, str]:
    """The fields of one record by column, or the reason why it is bad."""
    try:
        texts = (value or b"").decode().split(";")
    except UnicodeDecodeError:
        return {{"_error": "is not UTF-8"}}
    if len(texts) != len(COLUMNS):
        return {{"_error": f"does not have {{len(COLUMNS)}} fields"}}
    return dict(zip(COLUMNS, texts, strict=True))
'''


def _sample(new: NewPipeline) -> str:
    values = {name: _of_type(kind) for name, kind in new.columns.items()}
    if new.parser == "json":
        return "{" + ", ".join(f"{json.dumps(name)}: {value[0]}" for name, value in values.items()) + "}"
    return (";" if new.parser == "function" else ",").join(value[1] for value in values.values())


def _of_type(text: str) -> tuple[str, str, str]:
    """A value of a type: in JSON, as text, and in Python."""
    kind = parse_type(text)
    if kind.name == "numeric" and kind.precision is not None:
        value = "0" if kind.precision == kind.scale else "1"
        return value, value, f'Decimal("{value}")'
    if kind.name in _SAMPLES:
        return _SAMPLES[kind.name]
    word = "ada"[: kind.length]
    return f'"{word}"', word, f'"{word}"'


def _csv_pattern(new: NewPipeline) -> str:
    """One group per field; an empty field is NULL."""
    return ",".join(f'(?P<{name}>[^,"]+)?' for name in new.columns)


def _schedule(schedule: str | timedelta) -> str:
    if isinstance(schedule, str):
        return _quoted(schedule)
    seconds = schedule.total_seconds()
    if seconds % 60 == 0:
        return f"timedelta(minutes={seconds / 60:g})"
    return f"timedelta(seconds={seconds!r})"


def _names(names: tuple[str, ...]) -> str:
    return _quoted(names[0]) if len(names) == 1 else f"[{', '.join(map(_quoted, names))}]"


def _dictionary(name: str, values: Mapping[str, str]) -> list[str]:
    items = [f"{_quoted(key)}: {_quoted(value)}" for key, value in values.items()]
    line = f"{name} = {{{', '.join(items)}}}"
    return [line] if len(line) <= _WIDEST else [f"{name} = {{", *(f"    {one}," for one in items), "}"]


def _quoted(text: str) -> str:
    """A text in Python, in double quotes unless it has some."""
    shown = repr(text)
    return shown if '"' in text or "\\" in text else f'"{shown[1:-1]}"'
