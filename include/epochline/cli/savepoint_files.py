"""`epochline savepoint-export`, `savepoint-import` and `epoch-files`: savepoints as files."""

from pathlib import Path
from typing import Annotated

import typer

from epochline.cli import connections, printing
from epochline.cli.database import ask, session
from epochline.cli.operations import subject_of
from epochline.cli.options import AsJson, Name, OwnConnection
from epochline.config import discovery
from epochline.config.connections import POSTGRES
from epochline.config.resolve import epoch_folder, file_settings, resolve_settings
from epochline.errors import ActionRefusedError, ConfigurationError
from epochline.operations.savepoint import missing
from epochline.postgres.ledger.savepoint_file import description, file_of, files_in


def savepoint_export(
    pipeline: Name,
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    file: Annotated[Path, typer.Argument(help="The file to write; an existing file is not replaced.")],
    connection: OwnConnection = None,
) -> None:
    """Write the savepoint NAME of PIPELINE to FILE: heads, declaration and state, without the target's rows.

    Exit code 0: written; 1: there is no such savepoint, or the file cannot be written; 2: wrong use.
    """
    with subject_of(pipeline, connection).ledger.transaction() as tx:
        savepoint = tx.savepoints.find(pipeline, name)
        if savepoint is None:
            raise ActionRefusedError(missing(tx, pipeline, name))
        try:
            with file.open("xb") as into:
                file.chmod(0o600)  # state may hold personal data
                tx.savepoints.export(savepoint, into)
        except OSError as error:
            raise ActionRefusedError(f"{file} cannot be written: {error.strerror}.") from error
    printing.say(
        f"{savepoint} is in {file}: epoch {savepoint.epoch_id}, {sum(s.keys for s in savepoint.states.values())} keys"
    )


def savepoint_import(
    file: Annotated[
        Path, typer.Argument(help="A file of `savepoint-export`, or an epoch's file.", exists=True, dir_okay=False)
    ],
    connection: Annotated[
        str | None, typer.Option(help="Connection id of the database; epochline_postgres if not given.")
    ] = None,
) -> None:
    """Import the savepoint in FILE. A new pipeline can begin from it: `restore NEW NAME --of PIPELINE --reason …`.

    Exit code 0: imported; 1: the file is not a savepoint or is damaged, or the savepoint exists; 2: wrong use.
    """
    ledger = connections.adapters().ledger(connection or POSTGRES)
    with file.open("rb") as source, ledger.transaction() as tx:
        savepoint = tx.savepoints.import_savepoint(source)
    printing.say(
        f"{savepoint} is imported. `epochline restore NEW {savepoint.name} --of {savepoint.pipeline} --reason …`"
        " begins a new pipeline from it."
    )


def epoch_files(
    pipeline: Name,
    show: Annotated[int | None, typer.Option(metavar="EPOCH", help="Print the file of this epoch.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the files that the newest committed epochs of PIPELINE left, or with --show print one as JSON.

    Changes nothing. An epoch without its file is listed as missing. `epochline savepoint-import FILE` makes a savepoint
    of a file. Exit code 0: success, even if the list is empty; 1: the setting epoch_files is off, or a file is missing
    or damaged; 2: wrong use.
    """
    declared = discovery.find(pipeline)
    settings = resolve_settings(declared, file=file_settings())
    if settings.epoch_files is None:
        raise ConfigurationError(
            f"{pipeline} has no setting epoch_files: its epochs leave no file. Declare"
            " settings=Settings(epoch_files=…), or export a savepoint:"
            f" `epochline savepoint-export {pipeline} NAME FILE`."
        )
    folder = epoch_folder(settings.epoch_files, pipeline)
    if show is not None:
        printing.say(_described(pipeline, show, file_of(folder, show)))
        return
    files = files_in(folder)
    with session(connections.adapters().postgres_dsn(declared.postgres_connection)) as opened:
        epochs = ask(opened, "newest_committed_epochs", pipeline=pipeline, limit=settings.epoch_files_kept)
    rows = [
        {
            "epoch": epoch["epoch_id"],
            "committed": epoch["committed_at"],
            "file": str(file_of(folder, epoch["epoch_id"])) if epoch["epoch_id"] in files else "missing",
            "bytes": files[epoch["epoch_id"]].stat().st_size if epoch["epoch_id"] in files else None,
        }
        for epoch in epochs
    ]
    if as_json:
        printing.say(printing.as_json(rows))
    elif not rows:
        printing.say(f"no epoch of {pipeline} was committed yet; its files will be in {folder}")
    else:
        printing.table(list(rows[0]), [list(row.values()) for row in rows])


def _described(pipeline: str, epoch_id: int, file: Path) -> str:
    try:
        with file.open("rb") as source:
            return description(source)
    except OSError as error:
        raise ActionRefusedError(
            f"epoch {epoch_id} of {pipeline} has no file {file}: {error.strerror}. `epochline epoch-files {pipeline}`"
            " lists the files; `epochline ledger` shows an epoch without a file."
        ) from error
