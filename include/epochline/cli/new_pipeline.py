"""The files of a new pipeline: its declaration, its test, a sample record, and a parse function if it needs one. Pure.

`NewPipeline` holds the answers, `declared` checks them as the declaration's own classes do, `files` fills templates.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from epochline.declare.columns import parse_type
from epochline.declare.parsers import Json, Regex, Text
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.table import PostgresTable
from epochline.errors import DeclarationError

Parser = Literal["json", "csv", "text", "function"]
Mode = Literal["append", "upsert", "add"]

_FOLDER = Path(__file__).with_name("templates")
_SUFFIX = {"json": "jsonl", "csv": "csv", "text": "txt", "function": "txt"}
_WIDEST = 110

_VALUES = tomllib.loads((_FOLDER / "values.toml").read_text())
"""A value of each type, as records and tests write it."""


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
        # One group per field; an empty field is NULL.
        fields = ",".join(f'(?P<{name}>[^,"]+)?' for name in new.columns)
        parse = Regex(pattern=fields, columns=dict(new.columns))
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
    values = {name: _of_type(kind) for name, kind in new.columns.items()}
    made = {"dag": _dag(new), "test": _test(new, dags, values), "sample": _sample(new, values)}
    if new.parser == "function":
        made["function"] = _filled("function", new=new, columns=_wrapped("COLUMNS = (", map(_quoted, new.columns), ")"))
    return made


def sample_name(new: NewPipeline) -> str:
    """Name of the sample's file."""
    return f"{new.stem}_sample.{_SUFFIX[new.parser]}"


def _dag(new: NewPipeline) -> str:
    parse = {
        "json": "Json(columns=COLUMNS)",
        "csv": "Regex(pattern=FIELDS, columns=COLUMNS)",
        "text": f"Text(column={_quoted(next(iter(new.columns)))})",
        "function": _quoted(f"pipelines.{new.stem}:parse"),
    }[new.parser]
    keyed = [f"mode={_quoted(new.mode)}", f"key={_names(new.key)}"] if new.mode != "append" else []
    keyed += [f"measures={_names(new.measures)}"] if new.measures else []
    return _filled(
        "dag",
        new=new,
        parse=parse,
        imports=sorted({"KafkaSource", "Pipeline", "PostgresTable", *re.findall("^[A-Z][a-z]+", parse)}),
        columns=_wrapped(
            "COLUMNS = {", (f"{_quoted(name)}: {_quoted(kind)}" for name, kind in new.columns.items()), "}"
        ),
        sink=[f"table={_quoted(new.table)}", *keyed, "columns=COLUMNS"],
        schedule=_schedule(declared(new).schedule),
    )


def _test(new: NewPipeline, dags: str, values: Mapping[str, _Value]) -> str:
    row = {name: value.in_python for name, value in values.items()}
    text = " ".join(row.values())
    times = [name for name in ("UTC", "date", "datetime", "time") if re.search(rf"\b{name}[(,.)]", text)]
    imports = [f"from datetime import {', '.join(times)}"] if times else []
    imports += ["from decimal import Decimal"] if "Decimal(" in text else []
    return _filled("test", new=new, dags=dags, row=row, imports=imports, sample=sample_name(new))


def _sample(new: NewPipeline, values: Mapping[str, _Value]) -> str:
    if new.parser == "json":
        return "{" + ", ".join(f"{json.dumps(name)}: {value.in_json}" for name, value in values.items()) + "}\n"
    return (";" if new.parser == "function" else ",").join(value.text for value in values.values()) + "\n"


class _Value(NamedTuple):
    text: str
    in_json: str
    in_python: str


def _of_type(text: str) -> _Value:
    kind = parse_type(text)
    if kind.name == "numeric" and kind.precision is not None:
        value = "0" if kind.precision == kind.scale else "1"
        return _Value(value, value, f'Decimal("{value}")')
    shown = {"text": "ada"[: kind.length], **_VALUES.get(kind.name, {})}
    return _Value(
        shown["text"], shown.get("json", json.dumps(shown["text"])), shown.get("python", _quoted(shown["text"]))
    )


def _schedule(schedule: str | timedelta | None) -> str | None:
    if not isinstance(schedule, timedelta):
        return None if schedule is None else _quoted(schedule)
    seconds = schedule.total_seconds()
    return f"timedelta(minutes={seconds / 60:g})" if seconds % 60 == 0 else f"timedelta(seconds={seconds!r})"


def _names(names: tuple[str, ...]) -> str:
    return _quoted(names[0]) if len(names) == 1 else f"[{', '.join(map(_quoted, names))}]"


def _wrapped(begin: str, items: Iterable[str], end: str) -> str:
    """A tuple or a dictionary: on one line if it is short enough, else an item per line."""
    some = list(items)
    line = f"{begin}{', '.join(some)}{',' if len(some) == 1 and end == ')' else ''}{end}"
    return line if len(line) <= _WIDEST else "\n".join([begin, *(f"    {item}," for item in some), end])


def _quoted(text: str) -> str:
    """A text in Python, in double quotes unless it has some."""
    shown = repr(text)
    return shown if '"' in text or "\\" in text else f'"{shown[1:-1]}"'


_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER),
    undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False,  # noqa: S701 - Python
)  # fmt: skip
_TEMPLATES.filters["quoted"] = _quoted


def _filled(template: str, **values: object) -> str:
    return _TEMPLATES.get_template(f"{template}.py.jinja").render(values)
