"""`epochline examples`: list, enable and disable the shipped examples, or run one and check the result."""

import ast
from collections.abc import Mapping
from typing import Annotated

import typer

from epochline.cli import printing
from epochline.cli.declarations import create_targets, migrate_ledgers, show_targets
from epochline.cli.options import AsJson
from epochline.cli.shipped import shipped_folder
from epochline.config import discovery
from epochline.config.examples import enabled_examples, example_files, switch_examples
from epochline.config.places import project_folder
from epochline.config.shared_tables import without_shared_tables
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, DeclarationError, LedgerUnavailableError, StackError
from epochline_examples.programs import PROGRAMS

REFUSED = 1
_Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Names of `epochline examples list`; all if not given.")
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def examples() -> None:
    """The shipped examples: list, enable, disable and run them."""


@app.command("list")
def list_examples(as_json: AsJson = False) -> None:
    """List the programs and DAGs: what each shows, its DAG file, and whether the DAG file is enabled.

    `run` takes a program, enabled or not. `enable` and `disable` take a DAG file's name. Exit code 0: success.
    """
    shipped_folder()
    files, enabled = example_files(), enabled_examples()
    file_of = {name: stem for stem, path in files.items() for name in discovery.declared_in([path]).pipelines}
    rows: list[tuple[str | None, str | None, str]] = [
        (program.name, file_of.get(program.pipeline), program.shows) for program in PROGRAMS.values()
    ]
    with_program = {stem for _, stem, _ in rows}
    for stem, path in files.items():
        if stem not in with_program:
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            rows.append((None, stem, docstring.partition("\n")[0]))
    columns = ("program", "dag", "enabled", "shows")
    if as_json:
        answers = [(program, stem, None if stem is None else stem in enabled, shows) for program, stem, shows in rows]
        printing.say(printing.as_json([dict(zip(columns, answer, strict=True)) for answer in answers]))
        return
    printing.table(
        columns,
        [(program, stem, stem and ("yes" if stem in enabled else "no"), shows) for program, stem, shows in rows],
    )


@app.command()
def enable(names: _Names = None) -> None:
    """Enable shipped examples: Airflow lists their DAGs, and every command sees their pipelines.

    Removes their lines from dags/.airflowignore and migrates them; their tables are in the schema `examples`. Exit code
    0: enabled, and the tables exist or the message says which command makes them; 1: enabled, but a table was refused,
    or another pipeline names it; 2: wrong use.
    """
    chosen = _chosen(names)
    switch_examples(chosen, on=True)
    printing.say(f"enabled: {', '.join(chosen)}")
    pipelines, shared = _pipelines(chosen)
    printing.broken(shared)
    refused = bool(shared)
    try:
        migrate_ledgers(pipelines.values())
        created, tables_refused = create_targets(pipelines)
    except (ConfigurationError, LedgerUnavailableError, StackError) as error:
        printing.say(f"their tables were not made: {error} `epochline up` and `epochline migrate` make them.")
    else:
        refused = refused or bool(tables_refused)
        show_targets(created, tables_refused, printing.say)
        for name in created:
            read = ", ".join(source.described for source in pipelines[name].kafka_sources.values())
            fed = f"feed topic {read}; " if read else ""
            printing.say(f"next: {fed}`epochline plan {name}`; `epochline trigger {name} --unpause`")
        printing.say("Airflow finds the DAGs within 15 seconds")
    if refused:
        raise typer.Exit(REFUSED)


@app.command()
def disable(names: _Names = None) -> None:
    """Disable shipped examples: Airflow and the commands no longer see them. Tables and history stay.

    Adds their lines to dags/.airflowignore. Exit code 0: disabled; 2: wrong use.
    """
    chosen = _chosen(names)
    switch_examples(chosen, on=False)
    printing.say(f"disabled: {', '.join(chosen)}")
    printing.say('their tables stay; to delete them: `epochline sql --write "DROP SCHEMA examples CASCADE"`')


def _chosen(names: list[str] | None) -> list[str]:
    shipped = example_files()
    unknown = sorted(set(names or ()) - set(shipped))
    if unknown:
        raise typer.BadParameter(
            f"there is no example {', '.join(unknown)}; there are: {', '.join(shipped) or 'none'}", param_hint="NAME"
        )
    return sorted(set(names or shipped))


def _pipelines(names: list[str]) -> tuple[Mapping[str, Pipeline], list[DeclarationError]]:
    """The pipelines of examples, without those whose tables another pipeline of the project names, and why."""
    alone, shared = without_shared_tables(discovery.look(project_folder() / "dags"))
    declared = discovery.declared_in([example_files()[name] for name in names]).pipelines
    mine = [error for error in shared if any(repr(name) in str(error) for name in declared)]
    return {name: pipeline for name, pipeline in declared.items() if name in alone}, mine


@app.command()
def run(name: Annotated[str, typer.Argument(help="The program's name; see `epochline examples list`.")]) -> None:
    """Run the program NAME: print its input, each command and the result, and check the result.

    Starts PostgreSQL and Kafka of the embedded stack if they do not run. The example need not be enabled. The program
    has its own database, named example_NAME, and its own topics; each run recreates them, and they stay until the next
    run. Exit code 0: the result is what the documentation says; 1: it is not, or a step failed; 2: there is no such
    program.
    """
    from epochline.cli.program_run import ProgramRun

    if name not in PROGRAMS:
        raise typer.BadParameter(f"there is no program {name!r}; there are: {', '.join(PROGRAMS)}", param_hint="NAME")
    if not ProgramRun(PROGRAMS[name]).right():
        raise typer.Exit(1)
