"""A login whose password a command gives: each call, or each after some seconds, sets another in place of the one before."""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from psycopg2.extensions import parse_dsn

from epochline.config.connections import Connection, libpq_url

GRACE = 3

_COMMAND = """
import fcntl, json, secrets, sys, time
from pathlib import Path

import psycopg2
from psycopg2 import sql

at = json.loads(Path(sys.argv[1]).read_text())
with Path(at["given"]).open("a+") as given:
    fcntl.flock(given, fcntl.LOCK_EX)
    age = time.time() - Path(at["given"]).stat().st_mtime
    given.seek(0)
    passwords = given.read().splitlines()
    if passwords and age < at["seconds"]:
        print(passwords[-1])
        raise SystemExit
    if passwords and at["seconds"]:
        time.sleep(max(0, at["seconds"] + at["grace"] - age))
    # As long as a token of a cloud, with the characters of its URL.
    password = f"db:5432/?Action=connect&Token=%2F+{secrets.token_hex(300)}"
    with psycopg2.connect(at["admin"]) as session, session.cursor() as cursor:
        ends = time.time() + 1 + (at["seconds"] + at["grace"] if at["seconds"] else 30)
        until = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(ends))
        cursor.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {} VALID UNTIL {}").format(
                sql.Identifier(at["login"]), sql.Literal(password), sql.Literal(until)
            )
        )
    given.write(password + "\\n")
print(password)
"""


@dataclass(frozen=True)
class Expiring:
    """The connection of such a login."""

    dsn: str
    """With the login's first password."""
    admin: str
    folder: Path
    seconds: float = 0
    """For how long the command gives the same password; 0 where no two sessions log in at once. The password
    ends `GRACE` seconds later: a session that was given it has time to log in."""

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)
        (self.folder / "command.py").write_text(_COMMAND)
        at = {"admin": self.admin, "login": self.login, "seconds": self.seconds, "grace": GRACE}
        (self.folder / "at.json").write_text(json.dumps({**at, "given": str(self.folder / "given")}))

    @property
    def login(self) -> str:
        return str(parse_dsn(self.dsn)["user"])

    @property
    def connection(self) -> dict[str, object]:
        """As Airflow holds it."""
        parts = parse_dsn(self.dsn)
        command = f"{sys.executable} '{self.folder / 'command.py'}' '{self.folder / 'at.json'}'"
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
