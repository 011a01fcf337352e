"""`epochline savepoint-export` and `savepoint-import`: move savepoints between databases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epochline.cli import printing
from epochline.errors import ActionRefusedError

_CONNECTION = typer.Option(help="Connection id of the database; the pipeline's own if not given.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("savepoint-export")(export)
    app.command("savepoint-import")(import_savepoint)


def export(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    file: Annotated[Path, typer.Argument(help="The file to write; an existing file is not replaced.")],
    connection: Annotated[str | None, _CONNECTION] = None,
) -> None:
    """Write the savepoint NAME of PIPELINE to FILE: heads, declaration and state, without the target's rows.

    Exit code 0: written; 1: there is no such savepoint, or the file cannot be written; 2: wrong use.
    """
    from epochline.cli.operations import subject_of
    from epochline.operations.savepoint import missing

    with subject_of(pipeline, connection).ledger.transaction() as tx:
        found = tx.savepoints.find(pipeline, name)
        if found is None:
            raise ActionRefusedError(missing(tx, pipeline, name))
        try:
            with file.open("xb") as into:
                file.chmod(0o600)  # state may hold personal data
                tx.savepoints.export(found, into)
        except OSError as error:
            raise ActionRefusedError(f"{file} cannot be written: {error.strerror}.") from error
    printing.say(f"{found} is in {file}: epoch {found.epoch_id}, {sum(s.keys for s in found.states.values())} keys")


def import_savepoint(
    file: Annotated[Path, typer.Argument(help="A file that savepoint-export wrote.", exists=True, dir_okay=False)],
    connection: Annotated[
        str | None, typer.Option(help="Connection id of the database; epochline_postgres if not given.")
    ] = None,
) -> None:
    """Import the savepoint in FILE. A new pipeline can begin from it: `epochline restore NEW NAME --of PIPELINE`.

    Exit code 0: imported; 1: the file is no savepoint or is damaged, or the savepoint exists already; 2: wrong use.
    """
    from epochline.cli import connections, printing
    from epochline.config.connections import POSTGRES

    ledger = connections.ledger_at(connection or POSTGRES)
    with file.open("rb") as source, ledger.transaction() as tx:
        found = tx.savepoints.import_savepoint(source)
    printing.say(
        f"{found} is imported; begin a new pipeline from it: epochline restore NEW {found.name} --of {found.pipeline}"
    )
