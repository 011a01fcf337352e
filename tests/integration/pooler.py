"""A real PgBouncer in transaction mode before a test's database."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2
from psycopg2.extensions import parse_dsn

from epochline.local.postgres import server_account
from tests.ports import free_port
from tests.waiting import wait_for

SERVERS = 3
"""Sessions of the server that all clients share."""


def installed() -> str | None:
    """Where PgBouncer is; Debian's package is ``pgbouncer``."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def pooled(dsn: str, folder: Path, *settings: str) -> Iterator[str]:
    """The database of a DSN through PgBouncer, with more lines of its settings; gives the DSN that leads there."""
    parts = parse_dsn(dsn)
    port = free_port()
    (folder / "users.txt").write_text(f'"{parts["user"]}" "{parts["password"]}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={parts['host']} port={parts['port']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
        f"auth_file = {folder / 'users.txt'}\npool_mode = transaction\ndefault_pool_size = {SERVERS}\n"
        f"logfile = {folder / 'pgbouncer.log'}\n" + "".join(f"{line}\n" for line in settings)
    )
    account = server_account(folder, [folder])
    for path in (folder, *folder.iterdir()):
        account.own(path)
    command = [*account.prefix, installed() or "pgbouncer", str(folder / "pgbouncer.ini")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        through = f"postgresql://{parts['user']}:{parts['password']}@127.0.0.1:{port}/{parts['dbname']}"

        def answers() -> bool:
            assert server.poll() is None, (folder / "pgbouncer.log").read_text()
            with suppress(psycopg2.OperationalError):
                psycopg2.connect(through).close()
                return True
            return False

        wait_for("PgBouncer answers", answers)
        yield through
    finally:
        server.terminate()
        server.wait(10)
