"""A login whose password a command gives: each call sets another one, and the one before is refused from then on."""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from psycopg2.extensions import parse_dsn

from epochline.config.connections import Connection, libpq_url

_COMMAND = """
import json, secrets, sys, time
from pathlib import Path

import psycopg2
from psycopg2 import sql

given = json.loads(Path(sys.argv[1]).read_text())
# As long as a token of a cloud, with the characters of its URL.
password = f"db:5432/?Action=connect&Token=%2F+{secrets.token_hex(300)}"
with psycopg2.connect(given["admin"]) as session, session.cursor() as cursor:
    until = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(time.time() + 30))
    cursor.execute(
        sql.SQL("ALTER ROLE {} PASSWORD {} VALID UNTIL {}").format(
            sql.Identifier(given["login"]), sql.Literal(password), sql.Literal(until)
        )
    )
with Path(given["given"]).open("a") as log:
    log.write(password + "\\n")
print(password)
"""


@dataclass(frozen=True)
class Expiring:
    """The connection of such a login."""

    dsn: str
    """With the login's first password."""
    admin: str
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)
        (self.folder / "command.py").write_text(_COMMAND)
        given = {"admin": self.admin, "login": self.login, "given": str(self.folder / "given")}
        (self.folder / "given.json").write_text(json.dumps(given))

    @property
    def login(self) -> str:
        return str(parse_dsn(self.dsn)["user"])

    @property
    def connection(self) -> dict[str, object]:
        """As Airflow holds it."""
        parts = parse_dsn(self.dsn)
        command = f"{sys.executable} '{self.folder / 'command.py'}' '{self.folder / 'given.json'}'"
        return {
            "host": parts["host"], "port": int(parts["port"]), "schema": parts["dbname"], "login": parts["user"],
            "extra": {"password_command": command},
        }  # fmt: skip

    @property
    def url(self) -> str:
        return libpq_url(Connection(where="test", **self.connection))  # type: ignore[arg-type]

    @property
    def passwords(self) -> list[str]:
        """What the command gave, in order."""
        given = self.folder / "given"
        return given.read_text().splitlines() if given.exists() else []

    def taken(self) -> list[str]:
        """The passwords that PostgreSQL takes now, the login's first one included."""
        parts = parse_dsn(self.dsn)
        taken = []
        for password in [parts["password"], *self.passwords]:
            with suppress(psycopg2.OperationalError):
                psycopg2.connect(**{**parts, "password": password}).close()
                taken.append(password)
        return taken
