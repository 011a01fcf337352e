"""`epochline validate` and `migrate`: check declarations, and create the ledger and the target tables."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import typer

from epochline.cli import connections, printing
from epochline.cli.options import AsJson, Names
from epochline.config import discovery
from epochline.config.connections import POSTGRES
from epochline.config.discovery import Declared, unimportable
from epochline.config.shared_tables import find_alone, shared_tables, without_shared_tables
from epochline.declare.pipeline import Pipeline
from epochline.errors import (
    ConfigurationError,
    DeclarationError,
    EpochlineError,
    LedgerError,
    RightsMissingError,
    TargetError,
    one_line,
)

INVALID = 1
_PLACE = re.compile(r"(?P<file>\S.*?\.py)(?::(?P<line>\d+))?: (?P<said>.*)", re.DOTALL)


def validate(names: Names = None, as_json: AsJson = False) -> None:
    """Check declarations and their functions, and existing tables if the database answers. Changes nothing.

    Imports every DAG file and every function that a declaration names, and reports each problem with file and line: an
    invalid declaration, a function that cannot be imported, a parse or a select that lacks a column, a name or a table
    that two pipelines share. `preview` finds problems of a transform. If the target database has a ledger and answers,
    existing tables are compared as well; the last line says whether they were. `plan` asks Kafka and other sinks. With
    NAME, a broken declaration in another file is only a warning. A file that Airflow's safe mode would skip is a
    warning as well. Problems of every named pipeline are reported. Exit code 0: every declaration, or every named one,
    is valid; 1: there are problems, or there is no such pipeline; 2: wrong use.
    """
    declared = discovery.look()
    chosen = list(dict.fromkeys(names or sorted(declared.pipelines)))
    checked = _Checked()
    unknown = [name for name in chosen if name not in declared.pipelines]
    if unknown or not names:
        checked.problems += [one_line(error) for error in declared.broken]
    for name in chosen:
        _check(declared, name, checked)
    if as_json:
        problems = [_placed(problem) for problem in checked.problems]
        answer = {"pipelines": chosen, "valid": checked.valid, "tables_compared": checked.compared}
        printing.say(printing.as_json({**answer, "problems": problems}))
    else:
        for problem in checked.problems:
            printing.say(problem)
        if checked.valid or not checked.problems:
            printing.say(f"valid: {', '.join(checked.valid) or 'no pipeline is declared'}")
        for line in checked.summary():
            printing.say(line)
    if not unknown and names:
        printing.broken(declared.broken)
    for file in discovery.skipped_by_safe_mode(declared, chosen):
        printing.progress(f"warning: {file} {discovery.SKIPPED} Write the word, for example in a comment.")
    if checked.problems:
        raise typer.Exit(INVALID)


@dataclass(slots=True)
class _Checked:
    """What was found. ``away`` has the reasons why tables were not compared, each once, with their pipelines."""

    problems: list[str] = field(default_factory=list)
    valid: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    away: dict[str, list[str]] = field(default_factory=dict)
    transformed: list[str] = field(default_factory=list)

    def summary(self) -> Sequence[str]:
        """What was checked, and what was not."""
        if not self.compared and not self.away:
            return ()
        lines = ["checked: declarations, their functions, and tables that two pipelines name"]
        lines += [f"not run: transforms; `epochline preview {name}` runs that of {name}" for name in self.transformed]
        lines += [f"compared with PostgreSQL: the tables of {', '.join(self.compared)}"] if self.compared else []
        lines += [f"not compared: the tables of {', '.join(names)}: {why}" for why, names in self.away.items()]
        return lines


def _placed(problem: str) -> dict[str, Any]:
    part = _PLACE.fullmatch(problem)
    if part is None:
        return {"file": None, "line": None, "problem": problem}
    return {"file": part["file"], "line": int(part["line"]) if part["line"] else None, "problem": part["said"]}


def _check(declared: Declared, name: str, checked: _Checked) -> None:
    if name not in declared.pipelines:
        valid = ", ".join(declared.pipelines) or "none"
        left_out = discovery.why_left_out(name)
        checked.problems.append(left_out or f"no valid pipeline {name!r} is declared; valid ones: {valid}")
        return
    pipeline = declared.pipelines[name]
    shared = [str(error) for error in shared_tables(declared) if repr(name) in str(error)]
    problems = list(unimportable(pipeline))
    has_functions = isinstance(pipeline.parse, str) or any(sink.select is not None for sink in pipeline.sinks)
    if not problems and has_functions:
        from epochline.audit.preview import breaches  # It loads Arrow.

        problems += breaches(pipeline)
    problems += _misfits(pipeline, checked)
    checked.problems += [error for error in shared if error not in checked.problems]
    checked.problems += [f"{declared.places[name]}: pipeline {name!r}: {why}" for why in problems]
    if not shared and not problems:
        checked.valid.append(name)
        checked.transformed += [name] if pipeline.transform is not None else []


def _misfits(pipeline: Pipeline, checked: _Checked) -> Sequence[str]:
    """Why the tables that exist do not fit a declaration; notes whether a database answered. Prints the notes."""
    try:
        with connections.adapters().ledger(pipeline, any_version=True).transaction() as tx:
            fit = tx.targets.compare(pipeline)
    except (ConfigurationError, LedgerError) as error:
        checked.away.setdefault(one_line(error), []).append(pipeline.name)
        return ()
    checked.compared.append(pipeline.name)
    for note in fit.notes:
        printing.progress(note)
    return fit.problems


REFUSED = 1

Ledgers = dict[str, tuple[str | None, list[str]]]
"""By connection id: the revision of a ledger, None if it was not migrated, and the statements for a DBA."""


def migrate(names: Names = None, as_json: AsJson = False) -> None:
    """Migrate the ledger to this version, and create declared target tables that are missing.

    Safe to run at any time, also several times at once. Alters no column of an existing table. If the declaration names
    its columns, checks the table's owner and unique keys; `plan` compares the rest. Also creates the roles of least
    privilege and their grants, and lets the login of the connection epochline_reader read for the pages in Airflow. If
    this login may not do that, prints the statements for a DBA; only those pages and pipelines with a writer_connection
    need them. If it may not create schemas or tables, prints all statements for a DBA and changes nothing. With NAME,
    only the ledgers and tables of these pipelines.

    Exit code 0: ledger and targets exist; 1: refused, a DBA has to act first, or a table is not one that Epochline
    made; 2: a declaration is broken, or there is no such pipeline. In both cases the message says why, and the other
    pipelines are migrated. Also 2: two pipelines name one table; without NAME nothing is done then.
    """
    declared = discovery.look()
    shared = shared_tables(declared)
    if shared and not names:
        raise shared[0]
    chosen, unknown = _chosen(names) if names else (declared.pipelines, [])
    ledgers: Ledgers = {}
    created: dict[str, list[str]] = {}
    refused: dict[str, EpochlineError] = {}
    databases: dict[str, dict[str, Pipeline]] = {} if chosen or names else {POSTGRES: {}}
    for name, pipeline in chosen.items():
        databases.setdefault(pipeline.postgres_connection, {})[name] = pipeline
    for pipelines in databases.values():
        try:
            ledgers |= migrate_ledgers(pipelines.values())
        except RightsMissingError as error:
            refused |= dict.fromkeys(pipelines, error)
            connection = next((one.postgres_connection for one in pipelines.values()), POSTGRES)
            ledgers[connection] = (None, error.statements)
            continue
        except EpochlineError as error:
            if len(databases) == 1:
                raise
            refused |= dict.fromkeys(pipelines, error)
            continue
        targets = create_targets(pipelines)
        created |= targets[0]
        refused |= targets[1]
    if as_json:
        outcome = {
            "ledger": {connection: revision for connection, (revision, _) in ledgers.items()},
            "left_to_a_dba": {connection: statements for connection, (_, statements) in ledgers.items()},
            "pipelines": sorted(chosen),
            "created": created,
            "refused": {name: str(error) for name, error in refused.items()},
        }
        printing.say(printing.as_json(outcome))
    else:
        for connection, (revision, left_to_a_dba) in ledgers.items():
            printing.say(f"ledger of {connection}: {'not migrated' if revision is None else f'at revision {revision}'}")
            if left_to_a_dba:
                lacking = "create schemas" if revision is None else "make or grant the roles of least privilege"
                printing.say(f"this login may not {lacking}; a DBA has to run, in this database:")
                printing.say("\n".join(f"  {statement}" for statement in left_to_a_dba))
                printing.say("then run `epochline migrate` again")
        show_targets(created, refused, printing.say)
        if created:
            printing.say(
                "Tables that existed before were not compared with their declarations:"
                f" `epochline plan {' '.join(created)}` does that, and changes nothing."
            )
    for problem in unknown:
        printing.progress(printing.told(problem))
    printing.broken(declared.broken)
    if unknown or (declared.broken and not names and not refused):
        raise typer.Exit(DeclarationError.exit_code)
    if refused or None in (revision for revision, _ in ledgers.values()):
        raise typer.Exit(REFUSED)


def _chosen(names: Iterable[str]) -> tuple[dict[str, Pipeline], list[DeclarationError]]:
    """The declared pipelines of these names, and an error for each of the others."""
    chosen, errors = {}, []
    for name in dict.fromkeys(names):
        try:
            chosen[name] = find_alone(name)
        except DeclarationError as error:
            errors.append(error)
    return chosen, errors


def migrate_ledgers(pipelines: Iterable[Pipeline]) -> Ledgers:
    """Create or upgrade the ledger of each database that a pipeline names. Raises as `upgrade` of the ledger."""
    from epochline.postgres.ledger.migrate import arrange_roles, upgrade

    # Without any pipeline the default database still gets its ledger.
    tables: dict[str, list[str]] = {}
    for pipeline in pipelines:
        made = [sink.table for sink in pipeline.tables if sink.columns is not None]
        tables.setdefault(pipeline.postgres_connection, []).extend(made)
    ids = sorted(tables) or [POSTGRES]
    dsns = {connection: connections.adapters().postgres_dsn(connection) for connection in ids}
    viewers = {connection: _viewer(connection) for connection in ids}
    revisions = {
        connection: upgrade(dsn, tables.get(connection, ()), viewer=viewers[connection])
        for connection, dsn in dsns.items()
    }
    return {
        connection: (revisions[connection], arrange_roles(dsn, viewer=viewers[connection]))
        for connection, dsn in dsns.items()
    }


def _viewer(connection: str) -> str | None:
    """The login of the pages in Airflow, if its connection is known here and leads to the same database."""
    try:
        ledger, pages = (
            urlsplit(connections.adapters().postgres_dsn(login)) for login in (connection, "epochline_reader")
        )
    except ConfigurationError:
        return None
    hosts = [at.netloc.rpartition("@")[2] for at in (ledger, pages)]
    return unquote(pages.username or "") if hosts[0] == hosts[1] and pages.path == ledger.path else None


def create_targets(pipelines: Mapping[str, Pipeline]) -> tuple[dict[str, list[str]], dict[str, EpochlineError]]:
    """Create missing target tables. Returns, by pipeline, the tables that were made, and why targets were refused."""
    created: dict[str, list[str]] = {}
    refused: dict[str, EpochlineError] = {}
    for name, pipeline in pipelines.items():
        try:
            with connections.adapters().ledger(pipeline).transaction() as tx:
                created[name] = list(tx.targets.create(pipeline))
        except TargetError as error:
            refused[name] = error
    return created, refused


def create_declared(report: Callable[[str], None]) -> None:
    """Create the missing target tables of every declared pipeline, and report them.

    Names broken declarations, and pipelines that name one table: neither stops the others.
    """
    declared = discovery.look()
    alone, shared = without_shared_tables(declared)
    printing.broken([*declared.broken, *shared])
    show_targets(*create_targets(alone), report)


def show_targets(
    made: Mapping[str, list[str]], refused: Mapping[str, EpochlineError], report: Callable[[str], None]
) -> None:
    """Report the tables that were made; print the refusals to standard error."""
    for name, tables in made.items():
        report(f"{name}: {'made ' + ', '.join(tables) if tables else 'every target exists'}")
    for error in dict.fromkeys(refused.values()):
        printing.progress(f"refused: {error}")
