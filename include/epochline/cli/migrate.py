"""`epochline migrate`: create or upgrade the ledger, and create declared target tables."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from epochline.cli import connections, printing
from epochline.cli.failures import told
from epochline.cli.options import AsJson
from epochline.config import discovery
from epochline.config.connections import POSTGRES
from epochline.config.shared_tables import find_alone, shared_tables, without_shared_tables
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, DeclarationError, EpochlineError, TargetError

REFUSED = 1


def migrate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Pipelines; all declared ones if none is given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Migrate the ledger to this version, and create declared target tables that are missing.

    Safe to run at any time, also several times at once. Alters no column of an existing table. If the declaration names
    its columns, checks the table's owner and unique keys; `plan` compares the rest. Also creates the roles of least
    privilege and their grants, and lets the login of the connection epochline_reader see quarantined bytes on the
    pages in Airflow. If this login may not do that, prints the statements for a DBA; only those pages and pipelines
    with a writer_connection need them. With NAME, only the ledgers and tables of these pipelines.

    Exit code 0: ledger and targets exist; 1: refused, or a table is not one that Epochline made from the declaration;
    2: a declaration is broken, or there is no such pipeline. In both cases the message says why, and the other
    pipelines are migrated. Also 2: two pipelines name one table; without NAME nothing is done then.
    """
    declared = discovery.look()
    shared = shared_tables(declared)
    if shared and not names:
        raise shared[0]
    chosen, unknown = _chosen(names) if names else (declared.pipelines, [])
    ledgers: dict[str, MigratedLedger] = {}
    made: dict[str, list[str]] = {}
    refused: dict[str, EpochlineError] = {}
    databases = _by_database(chosen) if chosen or not names else []
    for pipelines in databases:
        try:
            ledgers |= migrate_ledgers(pipelines.values())
        except EpochlineError as error:
            if len(databases) == 1:
                raise
            refused |= dict.fromkeys(pipelines, error)
            continue
        targets = create_targets(pipelines)
        made |= targets.made
        refused |= targets.refused
    targets = CreatedTargets(made=made, refused=refused)
    if as_json:
        outcome = {
            "ledger": {one: ledger.revision for one, ledger in ledgers.items()},
            "left_to_a_dba": {one: ledger.left_to_a_dba for one, ledger in ledgers.items()},
            "pipelines": sorted(chosen),
            "created": targets.made,
            "refused": {name: str(error) for name, error in targets.refused.items()},
        }
        printing.say(printing.as_json(outcome))
    else:
        show_ledgers(ledgers)
        show_targets(targets, printing.say)
        if targets.made:
            printing.say(
                "Tables that existed before were not compared with their declarations:"
                f" `epochline plan {' '.join(targets.made)}` does that, and changes nothing."
            )
    for problem in unknown:
        printing.progress(told(problem))
    printing.broken(declared.broken)
    if unknown or (declared.broken and not names and not targets.refused):
        raise typer.Exit(DeclarationError.exit_code)
    if targets.refused:
        raise typer.Exit(REFUSED)


def _by_database(pipelines: Mapping[str, Pipeline]) -> list[dict[str, Pipeline]]:
    """The pipelines, those of one database together; one empty group without any pipeline."""
    databases: dict[str, dict[str, Pipeline]] = {}
    for name, pipeline in pipelines.items():
        databases.setdefault(pipeline.postgres_connection, {})[name] = pipeline
    return list(databases.values()) or [{}]


def _chosen(names: Iterable[str]) -> tuple[dict[str, Pipeline], list[DeclarationError]]:
    """The declared pipelines of these names, and an error for each of the others."""
    chosen, errors = {}, []
    for name in dict.fromkeys(names):
        try:
            chosen[name] = find_alone(name)
        except DeclarationError as error:
            errors.append(error)
    return chosen, errors


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedLedger:
    """The revision of a ledger, and the statements that its login may not run."""

    revision: str
    left_to_a_dba: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTargets:
    """By pipeline: the tables that were made, or why its targets were refused."""

    made: Mapping[str, list[str]]
    refused: Mapping[str, EpochlineError]


def migrate_ledgers(pipelines: Iterable[Pipeline]) -> dict[str, MigratedLedger]:
    """Create or upgrade the ledger of each database that a pipeline names; return them by connection id."""
    from epochline.postgres.ledger.migrate import arrange_roles, upgrade

    # Without any pipeline the default database still gets its ledger.
    ids = sorted({pipeline.postgres_connection for pipeline in pipelines}) or [POSTGRES]
    urls = {
        one: connections.adapters().postgres_dsn(one).replace("postgresql://", "postgresql+psycopg2://", 1)
        for one in ids
    }
    revisions = {one: upgrade(url) for one, url in urls.items()}
    return {
        one: MigratedLedger(revision=revisions[one], left_to_a_dba=arrange_roles(url, viewer=_viewer(one)))
        for one, url in urls.items()
    }


def _viewer(connection: str) -> str | None:
    """The login of the pages in Airflow, if its connection is known here and leads to the same database."""
    try:
        ledger, pages = (urlsplit(connections.adapters().postgres_dsn(one)) for one in (connection, "epochline_reader"))
    except ConfigurationError:
        return None
    there = (pages.hostname, pages.port, pages.path) == (ledger.hostname, ledger.port, ledger.path)
    return unquote(pages.username or "") if there else None


def show_ledgers(ledgers: Mapping[str, MigratedLedger]) -> None:
    """Print the revision of each ledger, and what is left to a DBA."""
    for one, ledger in ledgers.items():
        printing.say(f"ledger of {one}: at revision {ledger.revision}")
        if ledger.left_to_a_dba:
            printing.say("this login may not create the roles of least privilege; a DBA has to run, in this database:")
            printing.say("\n".join(f"  {statement}" for statement in ledger.left_to_a_dba))
            printing.say("then run `epochline migrate` again")


def create_targets(pipelines: Mapping[str, Pipeline]) -> CreatedTargets:
    """Create the missing target tables of each pipeline. A refused pipeline stops no other."""
    made: dict[str, list[str]] = {}
    refused: dict[str, EpochlineError] = {}
    for name, pipeline in pipelines.items():
        try:
            with connections.adapters().ledger(pipeline).transaction() as tx:
                made[name] = list(tx.targets.create(pipeline))
        except TargetError as error:
            refused[name] = error
    return CreatedTargets(made=made, refused=refused)


def create_declared(report: Callable[[str], None]) -> None:
    """Create the missing target tables of every declared pipeline, and report them.

    Names broken declarations, and pipelines that name one table: neither stops the others.
    """
    declared = discovery.look()
    alone, shared = without_shared_tables(declared)
    printing.broken([*declared.broken, *shared])
    show_targets(create_targets(alone), report)


def show_targets(targets: CreatedTargets, report: Callable[[str], None]) -> None:
    """Report the tables that were made; print the refusals to standard error."""
    for name, made in targets.made.items():
        report(f"{name}: {'made ' + ', '.join(made) if made else 'every target exists'}")
    for error in dict.fromkeys(targets.refused.values()):
        printing.progress(f"refused: {error}")
