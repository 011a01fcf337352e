"""`epochline init`: write the files of a new pipeline."""

import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from epochline.cli import printing
from epochline.cli.new_pipeline import Mode, NewPipeline, Parser, columns_of, declared, files, sample_name, stem_of
from epochline.config import discovery
from epochline.errors import ActionRefusedError

_AS_IN = "as in: id bigint, amount numeric(12,2)"


def init(
    name: Annotated[str, typer.Argument(help="The pipeline's name, which is the DAG's id.")],
    topic: Annotated[str | None, typer.Option(help="The topic to read; NAME if not given.")] = None,
    parser: Annotated[
        Parser | None, typer.Option(help="The format of a value; json if not given. A function is yours to write.")
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
            key=tuple(one.strip() for one in key.split(",")) if key else (), schedule=schedule,
        )  # fmt: skip
        declared(new)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--columns") from None
    _write(new)


def _ask(question: str, default: str, choices: tuple[str, ...] = ()) -> Any:
    def checked(answer: str) -> str:
        if choices and answer not in choices:
            raise typer.BadParameter(f"{answer!r} is none of {', '.join(choices)}")
        return answer

    asked = f"{question} ({', '.join(choices)})" if choices else question
    # On standard error, as all questions: standard output is for results.
    return typer.prompt(asked, default=default, value_proc=checked, show_default=bool(default), err=True)


def _write(new: NewPipeline) -> None:
    dags = discovery.dags_folder()
    tests = dags.parent / "tests"
    places = {
        "dag": dags / f"{new.stem}.py",
        "function": discovery.project_folder() / "spark_jobs" / "pipelines" / f"{new.stem}.py",
        "test": tests / f"test_{new.stem}.py",
        "sample": tests / sample_name(new),
    }
    written = {places[kind]: text for kind, text in files(new, dags.name).items()}
    if existing := [_shown(file) for file in written if file.exists()]:
        raise ActionRefusedError(
            f"{', '.join(existing)} exists already; nothing was written. Take another name, or change the file"
            " yourself."
        )
    if place := discovery.look(dags).places.get(new.name):
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
    here = Path.cwd()
    return str(file.relative_to(here) if file.is_relative_to(here) else file)
