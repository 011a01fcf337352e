"""`epochline migrate`: create or upgrade the ledger, and create declared target tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from epochline.declare.pipeline import Pipeline
from epochline.errors import DeclarationError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("migrate")(migrate)


def migrate(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Migrate the ledger to this version, and create declared target tables that are missing.

    Safe to run at any time, also several times at once. Alters no column of a target. Also creates the roles of least
    privilege and their grants. If this login may not, the statements are printed for a DBA; only pipelines with a
    writer_connection need them. Exit code 0: ledger and targets exist; 1: refused, the message says why; 2: a
    declaration is broken; it is named, and everything is done for the others.
    """
    from epochline.cli import connections, printing
    from epochline.config import discovery
    from epochline.config.connections import POSTGRES

    declared = discovery.look()
    found = declared.pipelines
    # Without any pipeline the default database still gets its ledger.
    ids = sorted({pipeline.postgres_connection for pipeline in found.values()}) or [POSTGRES]
    revisions = {one: _upgrade(connections.postgres_dsn(one)) for one in ids}
    left = {one: _left_to_a_dba(connections.postgres_dsn(one)) for one in ids}
    tables = create_targets(found)
    if as_json:
        printing.say(
            printing.as_json(
                {"ledger": revisions, "left_to_a_dba": left, "pipelines": sorted(found), "created": tables}
            )
        )
    else:
        _show_ledgers(revisions, left)
        _show(tables, printing.say)
    printing.broken(declared.broken)
    if declared.broken:
        raise typer.Exit(DeclarationError.exit_code)


def _show_ledgers(revisions: Mapping[str, str], left: Mapping[str, list[str]]) -> None:
    from epochline.cli import printing

    for one, revision in revisions.items():
        printing.say(f"ledger of {one}: at revision {revision}")
        if left[one]:
            printing.say("this login may not create the roles of least privilege; a DBA has to run, in this database:")
            printing.say("\n".join(f"  {statement}" for statement in left[one]))
            printing.say("then run `epochline migrate` again")


def create_targets(found: Mapping[str, Pipeline]) -> dict[str, list[str]]:
    """Create the missing target tables of each pipeline; return them by pipeline."""
    from epochline.cli.connections import ledger_of

    made = {}
    for name, pipeline in found.items():
        with ledger_of(pipeline).transaction() as tx:
            made[name] = list(tx.targets.create(pipeline))
    return made


def create_declared(report: Callable[[str], None]) -> None:
    """Create the missing target tables of every declared pipeline, report them, and name broken declarations."""
    from epochline.cli import printing
    from epochline.config import discovery

    declared = discovery.look()
    printing.broken(declared.broken)
    _show(create_targets(declared.pipelines), report)


def _show(tables: dict[str, list[str]], report: Callable[[str], None]) -> None:
    for name, made in tables.items():
        report(f"{name}: {'made ' + ', '.join(made) if made else 'every target exists'}")


def _upgrade(dsn: str) -> str:
    from epochline.postgres.ledger.migrate import upgrade

    return upgrade(_url(dsn))


def _left_to_a_dba(dsn: str) -> list[str]:
    from epochline.postgres.ledger.migrate import arrange_roles

    return arrange_roles(_url(dsn))


def _url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg2://", 1)
