"""`epochline init`: write the files of a new pipeline.

They are its declaration, its test, a sample record, and a parse function if it needs one. `NewPipeline` holds the
answers, `declared` checks them as the declaration's own classes do, and `files` fills templates.
"""

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from epochline.cli import printing
from epochline.config import discovery
from epochline.config.places import dags_folder, functions_folder
from epochline.declare.columns import parse_type
from epochline.declare.parsers import Json, Regex, Text
from epochline.declare.pipeline import Pipeline
from epochline.declare.source import KafkaSource
from epochline.declare.table import PostgresTable
from epochline.errors import ActionRefusedError, DeclarationError

Parser = Literal["json", "csv", "text", "function"]
Mode = Literal["append", "upsert", "add"]

_FOLDER = Path(__file__).with_name("templates")
_SUFFIX = {"json": "jsonl", "csv": "csv", "text": "txt", "function": "txt"}

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


class _Value(NamedTuple):
    text: str
    in_json: str
    in_python: str


def stem_of(name: str) -> str:
    """A pipeline's name as a name of files, modules and tables."""
    return re.sub(r"\W", "_", name)


def columns_of(text: str) -> dict[str, str]:
    """Columns as SQL writes them: ``id bigint, amount numeric(12,2)``.

    Raises:
        ValueError: a column has no type, or two columns have one name.
    """
    columns: dict[str, str] = {}
    for column in re.split(r",(?![^(]*\))", text):
        name, _, kind = column.strip().partition(" ")
        if not kind.strip():
            raise ValueError(f"{column.strip()!r} has no type; write columns as in: id bigint, amount numeric(12,2)")
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
    row = {name: value.in_python for name, value in values.items()}
    times = [
        name for name in ("UTC", "date", "datetime", "time") if re.search(rf"\b{name}[(,.)]", " ".join(row.values()))
    ]

    def filled(template: str) -> str:
        return _TEMPLATES.get_template(f"{template}.py.jinja").render(
            new=new,
            dags=dags,
            sample=sample_name(new),
            row=row,
            times=times,
            schedule=_schedule(declared(new).schedule),
        )

    texts = {"dag": filled("dag"), "test": filled("test"), "sample": _sample(new, values)}
    return texts | {"function": filled("function")} if new.parser == "function" else texts


def sample_name(new: NewPipeline) -> str:
    """Name of the sample's file."""
    return f"{new.stem}_sample.{_SUFFIX[new.parser]}"


def _sample(new: NewPipeline, values: Mapping[str, _Value]) -> str:
    if new.parser == "json":
        return "{" + ", ".join(f"{json.dumps(name)}: {value.in_json}" for name, value in values.items()) + "}\n"
    return (";" if new.parser == "function" else ",").join(value.text for value in values.values()) + "\n"


def _of_type(text: str) -> _Value:
    kind = parse_type(text)
    if kind.name == "numeric" and kind.precision is not None:
        value = "0" if kind.precision == kind.scale else "1"
        return _Value(value, value, f'Decimal("{value}")')
    forms = {"text": "ada"[: kind.length], **_VALUES.get(kind.name, {})}
    return _Value(
        forms["text"], forms.get("json", json.dumps(forms["text"])), forms.get("python", _quoted(forms["text"]))
    )


def _schedule(schedule: str | timedelta | None) -> str | None:
    if not isinstance(schedule, timedelta):
        return None if schedule is None else _quoted(schedule)
    seconds = schedule.total_seconds()
    return f"timedelta(minutes={seconds / 60:g})" if seconds % 60 == 0 else f"timedelta(seconds={seconds!r})"


def _quoted(text: str) -> str:
    """A text in Python, in double quotes unless it has some."""
    literal = repr(text)
    return literal if '"' in text or "\\" in text else f'"{literal[1:-1]}"'


_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER),
    undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False,  # noqa: S701 - Python
)  # fmt: skip
_TEMPLATES.filters["quoted"] = _quoted


_AS_IN = "as in: id bigint, amount numeric(12,2)"


def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name, which is the DAG's id.")],
    topic: Annotated[str | None, typer.Option(help="The topic to read; NAME if not given.")] = None,
    parser: Annotated[
        Parser | None, typer.Option(help="The format of a value; json if not given. With function, you write it.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns and types, as in SQL: 'id bigint, amount numeric(12,2)'.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The target table; NAME if not given, with _ for each - and dot.")
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="What an epoch does to the table: append rows, upsert by key, or add to sums per key; append if not"
            " given."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Columns of the key, comma-separated; for upsert and add.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Time between runs (PT1M), cron, or @hourly; none if not given.")
    ] = None,
) -> None:
    """Write a new pipeline NAME: its declaration, its test and a sample record. Overwrites nothing.

    At a terminal, the command asks for each missing option. Elsewhere --columns is required, and the other options
    have defaults. Exit code 0: written, and the next commands are printed; 1: a file or a pipeline with that name
    exists; 2: wrong use, or the declaration would be invalid, and nothing was written.
    """
    ask = _ask if sys.stdin.isatty() else lambda _question, default, _choices=(): default
    topic = topic or ask("Topic", name)
    parser = parser or ask("Parser", "json", get_args(Parser))
    if columns is None:
        columns = "value text" if parser == "text" else ask(f"Columns, {_AS_IN}", "")
    if not columns:
        raise typer.BadParameter(f"name the columns, {_AS_IN}", param_hint="--columns")
    table = table or ask("Table", stem_of(name))
    mode = mode or ask("Mode", "append", get_args(Mode))
    if key is None and mode != "append":
        key = ask("Columns of the key", "") or None
    schedule = schedule or ask("Time between runs (PT1M, cron, or nothing)", "") or None
    try:
        new = NewPipeline(
            name=name, topic=topic, parser=parser, columns=columns_of(columns), table=table, mode=mode,
            key=tuple(column.strip() for column in key.split(",")) if key else (), schedule=schedule,
        )  # fmt: skip
        declared(new)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--columns") from None
    _write(new)


def _ask(question: str, default: str, choices: tuple[str, ...] = ()) -> Any:
    def checked(answer: str) -> str:
        if choices and answer not in choices:
            raise typer.BadParameter(f"{answer!r} is not one of {', '.join(choices)}")
        return answer

    prompt = f"{question} ({', '.join(choices)})" if choices else question
    # On standard error, as all questions: standard output is for results.
    return typer.prompt(prompt, default=default, value_proc=checked, show_default=bool(default), err=True)


def _write(new: NewPipeline) -> None:
    dags = dags_folder()
    tests = dags.parent / "tests"
    places = {
        "dag": dags / f"{new.stem}.py",
        "function": functions_folder() / "pipelines" / f"{new.stem}.py",
        "test": tests / f"test_{new.stem}.py",
        "sample": tests / sample_name(new),
    }
    written = {places[kind]: text for kind, text in files(new, dags.name).items()}
    if existing := [_shown(file) for file in written if file.exists()]:
        raise ActionRefusedError(
            f"{', '.join(existing)} exists already; nothing was written. Take another name, or change the file"
            " yourself."
        )
    if dags.is_dir() and (place := discovery.look(dags).places.get(new.name)):
        raise ActionRefusedError(
            f"{place} declares a pipeline {new.name!r} already; nothing was written. Take another name."
        )
    for file, text in written.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x") as out:
            out.write(text)
        printing.say(f"wrote {_shown(file)}")
    printing.say("next:")
    for command in (
        f"pytest {_shown(places['test'])}",
        f"epochline validate {new.name}",
        "epochline migrate",
        f"epochline feed {_shown(places['sample'])} --topic {new.topic}",
        f"epochline preview {new.name}",
        f"epochline trigger {new.name} --unpause",
    ):
        printing.say(f"  {command}")


def _shown(file: Path) -> str:
    folder = Path.cwd()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)
