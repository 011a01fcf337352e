"""A PostgreSQL with a standby that streams from it and can take its place; connections name both hosts."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from psycopg2 import sql

from epochline.local.home import Ports
from epochline.local.part import Server
from epochline.local.postgres import Account, Postgres, binaries
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import upgrade
from tests.conftest import throw_away
from tests.crash.servers import process_of
from tests.databases import QUICK, as_admin, query
from tests.ports import choose_ports
from tests.waiting import wait_for


class Standby(Postgres):
    """One of two servers. Its first start copies the other one, if that is given, and streams from it."""

    other: Postgres | None = None

    def _init(self, account: Account) -> None:
        if self.other is None:
            super()._init(account)
            return
        at = urlsplit(self.other.superuser_dsn)
        draft = self.folder / "data.new"
        command = [
            *account.prefix, str(binaries() / "pg_basebackup"), "--pgdata", str(draft), "--write-recovery-conf",
            "--checkpoint=fast", f"--dbname=postgresql://{at.username}@{at.hostname}:{at.port}/",
        ]  # fmt: skip
        environment = {"PGPASSWORD": at.password or "", "LC_ALL": "C"}
        subprocess.run(command, check=True, capture_output=True, env=environment, cwd="/")
        draft.rename(self.data)

    def wait(self, seconds: float = 120) -> None:
        """Wait until it answers; a standby has the roles and databases of the server that it copies."""
        if self.other is None:
            super().wait(seconds)
        else:
            Server.wait(self, seconds)


class Pair:
    """Two servers with one pair of homes: one takes writes, the other may take its place."""

    def __init__(self, folder: Path) -> None:
        self.stacks = [Stack(folder / name, postgres_settings=QUICK) for name in ("one", "two")]
        for stack in self.stacks:
            choose_ports(stack.home)
            stack.postgres = Standby(stack.home, Ports(stack.home), {**QUICK, "wal_receiver_status_interval": "1s"})
        self.primary, self.standby = (stack.postgres for stack in self.stacks)
        self._numbers = itertools.count(1)

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Pair]:
        folder = Path(tempfile.mkdtemp(prefix="epochline-pair-"))
        folder.chmod(0o711)
        pair = cls(folder)
        try:
            pair.stacks[0].up(parts=("postgres",), report=lambda _line: None)
            as_admin(pair.primary.superuser_dsn, "CREATE DATABASE pair_template OWNER epochline")
            upgrade(pair.primary.dsn("pair_template"))
            shutil.copy(pair.stacks[0].home.secrets, pair.stacks[1].home.secrets)
            pair._copy()
            yield pair
        finally:
            for stack in pair.stacks:
                throw_away(stack)
            shutil.rmtree(folder, ignore_errors=True)

    def _copy(self) -> None:
        assert isinstance(self.standby, Standby)
        self.standby.other = self.primary
        self.standby.start()
        self.standby.wait()

    def renew(self) -> None:
        """Whatever a test left: the server that takes writes has a fresh standby again."""
        if self.standby.pid is not None and not self.streams():
            kill(self.standby)
        if self.standby.pid is None:
            shutil.rmtree(self.standby.data, ignore_errors=True)
            self._copy()

    def new_database(self, *, synchronous: bool = True) -> str:
        """Makes a database on both servers; gives its URL, which names both and takes the one that takes writes."""
        self.renew()
        name = f"test_{next(self._numbers)}"
        made = sql.SQL("CREATE DATABASE {} OWNER epochline TEMPLATE pair_template").format(sql.Identifier(name))
        as_admin(self.primary.superuser_dsn, made)
        self.let_commits_wait(synchronous)
        self.until_replayed()
        return self.dsn(name)

    def let_commits_wait(self, synchronous: bool = True) -> None:
        """Let commits wait for the standby, or no more."""
        standbys = sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(
            sql.Literal("*" if synchronous else "")
        )
        as_admin(self.primary.superuser_dsn, standbys, "SELECT pg_reload_conf()")

    def synchronous(self) -> bool:
        """Whether the standby has all that the primary has acknowledged."""
        with contextlib.suppress(Exception):
            asked = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"
            return bool(query(self.primary.superuser_dsn, asked))
        return False

    def dsn(self, name: str) -> str:
        """The URL of a database that names both servers."""
        at = urlsplit(self.primary.dsn(name))
        login = at.netloc.rpartition("@")[0]
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://{login}@{hosts}/{name}?target_session_attrs=read-write"

    @staticmethod
    def name_of(dsn: str) -> str:
        """The database that a URL names."""
        return urlsplit(dsn).path[1:]

    def streams(self) -> bool:
        """Whether the standby receives what the primary writes."""
        with contextlib.suppress(Exception):
            return bool(
                query(self.primary.superuser_dsn, "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")
            )
        return False

    def until_replayed(self) -> None:
        """Wait until the standby shows all that the primary has written."""
        [(written,)] = query(self.primary.superuser_dsn, "SELECT pg_current_wal_flush_lsn()")
        asked = "SELECT pg_last_wal_replay_lsn() >= %s"
        wait_for("the standby has replayed", lambda: query(self.standby.superuser_dsn, asked, written) == [(True,)])

    def cut_standby_off(self) -> None:
        """From now on the standby receives nothing."""
        as_admin(self.standby.superuser_dsn, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        wait_for("nothing streams", lambda: not self.streams())

    def fail_over(self, *, kill_primary: bool = True) -> None:
        """The primary is gone at once, or goes on apart from the standby, which takes its place."""
        if kill_primary:
            kill(self.primary)
        as_admin(self.standby.superuser_dsn, "SELECT pg_promote(true, 60)")
        self.primary, self.standby = self.standby, self.primary


def kill(server: Postgres) -> None:
    """Kill a server with all its backends at once, as a power cut does."""
    postmaster = process_of(server.pid)
    family = [postmaster, *postmaster.children(recursive=True)]
    for process in family:
        with contextlib.suppress(Exception):
            process.kill()
    postmaster.wait(20)
    server.daemon.end_leftovers()
