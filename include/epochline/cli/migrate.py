"""`epochline migrate`: the ledger and the declared target tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from epochline.declare.pipeline import Pipeline


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("migrate")(migrate)


def migrate(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Bring the ledger to this version, and make the target tables that are declared and missing.

    Safe to run at any time and from several places. No column is ever altered. Roles of least privilege are made and
    granted to; what this login may not do is printed for a DBA to run, and changes nothing for pipelines without a
    writer_connection. Exit code 0: ledger and targets are there; 1: refused, the message says why; 2: a declaration is
    wrong.
    """
    from epochline.cli import connections, printing
    from epochline.config import discovery
    from epochline.config.connections import POSTGRES

    found = discovery.find_all()
    # Without a pipeline there may still be a ledger to make, for those to come.
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
        return
    for one, revision in revisions.items():
        printing.say(f"ledger of {one}: at revision {revision}")
        if left[one]:
            printing.say("this login may not arrange the roles of least privilege; a DBA runs, in this database:")
            printing.say("\n".join(f"  {statement}" for statement in left[one]))
            printing.say("and then `epochline migrate` is run again")
    _show(tables, printing.say)


def create_targets(found: dict[str, Pipeline]) -> dict[str, list[str]]:
    """Make what is missing of every pipeline's targets; the tables made, by pipeline."""
    from epochline.cli.connections import ledger_of

    made = {}
    for name, pipeline in found.items():
        with ledger_of(pipeline).transaction() as tx:
            made[name] = list(tx.targets.create(pipeline))
    return made


def create_declared(report: Callable[[str], None]) -> None:
    """Make the targets of every declared pipeline, as `up` does, and say which."""
    from epochline.config import discovery

    _show(create_targets(discovery.find_all()), report)


def _show(tables: dict[str, list[str]], report: Callable[[str], None]) -> None:
    for name, made in tables.items():
        report(f"{name}: {'made ' + ', '.join(made) if made else 'every target is there'}")


def _upgrade(dsn: str) -> str:
    from epochline.postgres.ledger.migrate import upgrade

    return upgrade(_url(dsn))


def _left_to_a_dba(dsn: str) -> list[str]:
    from epochline.postgres.ledger.migrate import arrange_roles

    return arrange_roles(_url(dsn))


def _url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg2://", 1)
