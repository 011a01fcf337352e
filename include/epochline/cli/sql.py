"""`epochline sql`: open psql on the target database, or run one query."""

import csv
import os
import re
import shutil
import sys
from typing import Annotated, Any

import typer
from psycopg2.extensions import parse_dsn

from epochline.cli import connections, database, printing
from epochline.config.connections import POSTGRES
from epochline.config.logins import complete
from epochline.errors import ConfigurationError, StackError
from epochline.local.postgres import binaries
from epochline.protocol.quantities import counted

_OPTION = re.compile(r"--?[A-Za-z][\w-]*(=\S*)?")


def sql(
    query: Annotated[str | None, typer.Argument(help="The query; psql is opened if not given.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Allow changes; without it the session is read only.")] = False,
    connection: Annotated[str, typer.Option(help="Connection id of the database.")] = POSTGRES,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line and row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header; NULL is an empty field.")] = False,
) -> None:
    """Open psql on the target database, or run QUERY and show its rows. Read only unless --write is given.

    Exit code 0: success; 1: PostgreSQL refuses or cannot be reached; 2: wrong use; without QUERY, psql's own codes.
    """
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    if query is not None and _OPTION.fullmatch(query):
        raise typer.BadParameter(f"No such option: {query}")
    if query is None and (as_json or as_csv):
        raise typer.BadParameter("--json and --csv need a QUERY")
    dsn = connections.adapters().postgres_dsn(connection)
    if query is None:
        _open_psql(dsn, write)
        return
    with database.session(dsn, write=write, any_version=True) as opened:
        database.show_texts(opened, numbers=as_json)
        columns, rows = database.execute(opened, query)
    _print(columns, list(rows), as_json, as_csv)


def _print(columns: list[str], rows: list[tuple[Any, ...]], as_json: bool, as_csv: bool) -> None:
    if as_json:
        if len(set(columns)) != len(columns):
            raise ConfigurationError("two columns have the same name, which JSON cannot hold: name them with AS.")
        for row in rows:
            printing.say(printing.json_line(dict(zip(columns, row, strict=True))))
    elif as_csv:
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerows([columns, *([printing.text(value) for value in row] for row in rows)] if columns else [])
    elif columns:
        printing.table(columns, [[None if value is None else printing.text(value) for value in row] for row in rows])
        printing.say(f"({counted(len(rows), 'row')})")
    else:
        printing.say("done")


def _open_psql(dsn: str, write: bool) -> None:
    """Replace this process by psql. Other users can read arguments, so the password goes into the environment."""
    parts = parse_dsn(complete(dsn))
    names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE",
             "sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT",
             "sslkey": "PGSSLKEY", "channel_binding": "PGCHANNELBINDING",
             "target_session_attrs": "PGTARGETSESSIONATTRS"}  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    environment |= {names[key]: value for key, value in parts.items() if key in names}
    if not write:
        environment["PGOPTIONS"] = "-c default_transaction_read_only=on"
    try:
        program: str | None = str(binaries() / "psql")
    except StackError:
        program = shutil.which("psql")
    if program is None:
        raise ConfigurationError("there is no psql on this machine; run `epochline sql QUERY` instead.")
    sys.stdout.flush()
    # psql takes over terminal, signals and exit code.
    os.execve(program, [program], environment)  # noqa: S606 - no shell is wanted
