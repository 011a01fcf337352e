"""Servers of the crash suite's own, which its tests kill, stop and starve."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from psycopg2 import sql

from epochline.local.home import Home, Ports
from epochline.local.kafka import Kafka
from epochline.local.postgres import Account, binaries, server_account
from epochline.local.stack import Stack
from tests.conftest import throw_away
from tests.crash.proxy import Proxy
from tests.databases import QUICK, Databases, as_admin, query
from tests.ports import choose_ports, free_port
from tests.waiting import resume_family, stop_family

WAL_SEGMENT = 2 * 1024 * 1024
"""Bytes of a segment of the write-ahead log: small, so that a limit on file sizes can let it pass and stop a table."""


class ProxiedKafka(Kafka):
    """A broker with one more listener, which sends its clients to a proxy."""

    def __init__(self, home: Home, ports: Ports) -> None:
        # The cleaner and whatever ends transactions look often, so that a test need not wait for them.
        settings = {
            "log.cleaner.backoff.ms": "200",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "producer.id.expiration.check.interval.ms": "500",
        }
        super().__init__(home, ports, settings)
        self.inner = free_port()
        self.advertised = 0

    def _configure(self) -> Path:
        path = super()._configure()
        lines = path.read_text().splitlines()
        added = {
            "listeners": f",PROXIED://127.0.0.1:{self.inner}",
            "advertised.listeners": f",PROXIED://127.0.0.1:{self.advertised}",
            "listener.security.protocol.map": ",PROXIED:PLAINTEXT",
        }
        path.write_text("".join(f"{line}{added.get(line.partition('=')[0], '')}\n" for line in lines))
        return path


class Server:
    """One PostgreSQL with ledger and targets, and one broker, reached directly or through a proxy."""

    to_kafka: Proxy

    def __init__(self, home: Path) -> None:
        # By default a server that crashed opens and syncs each file of each database before it recovers.
        self.stack = Stack(home, postgres_settings={**QUICK, "recovery_init_sync_method": "syncfs"})
        self.postgres = self.stack.postgres
        self.kafka = self.stack.kafka = ProxiedKafka(self.stack.home, Ports(self.stack.home))
        self.new_database = Databases(self.postgres, "WAL_LOG").new

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Server]:
        home = Path(tempfile.mkdtemp(prefix="epochline-crash-"))
        server = cls(home)
        choose_ports(server.stack.home)
        with Proxy("127.0.0.1", server.kafka.inner) as server.to_kafka:
            server.kafka.advertised = server.to_kafka.port
            try:
                server.stack.up(parts=("postgres", "kafka"), report=lambda _line: None)
                server.postgres.stop()
                server._run("pg_resetwal", f"--wal-segsize={WAL_SEGMENT >> 20}")
                server.start()
                yield server
            finally:
                throw_away(server.stack)
                shutil.rmtree(home, ignore_errors=True)

    # PostgreSQL.

    def crash_and_restart(self) -> float:
        """Stop PostgreSQL as a power cut does, without a checkpoint, and let it recover; when it stopped."""
        process = process_of(self.postgres.pid)
        self._run("pg_ctl", "stop", "-m", "immediate")
        # pg_ctl returns once the file postmaster.pid is gone; a start would find the process, and start nothing.
        process.wait(20)
        stopped = time.monotonic()
        self.start()
        return stopped

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._account().prefix, str(binaries() / program), *arguments, "-D", str(self.postgres.data)]
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    def _account(self) -> Account:
        return server_account(self.postgres.data, [binaries() / "postgres", self.stack.home.root])

    def start(self) -> None:
        self.postgres.start()
        self.postgres.wait()

    @contextlib.contextmanager
    def file_size_limit(self, size: int) -> Iterator[None]:
        """No file of PostgreSQL grows beyond ``size`` bytes: to its backends the disk is full."""
        self._limit(str(size))
        try:
            yield
        finally:
            if self.postgres.pid is not None:
                self._limit("unlimited")

    def _limit(self, size: str) -> None:
        # The postmaster's own limit is inherited by every backend that it starts from now on; its account may set it.
        prefix = [part for part in self._account().prefix if "caps" not in part]
        subprocess.run([*prefix, "prlimit", "--pid", str(self.postgres.pid), f"--fsize={size}:"], check=True)

    @contextlib.contextmanager
    def frozen(self, pid: int | None) -> Iterator[None]:
        family = stop_family(process_of(pid))
        try:
            yield
        finally:
            resume_family(family)

    def admin(self, statement: str, *names: str) -> None:
        as_admin(self.postgres.superuser_dsn, sql.SQL(statement).format(*map(sql.Identifier, names)))

    # Kafka.

    def copy_kafka(self) -> None:
        self._restarted(lambda: shutil.copytree(self.kafka.folder, self._kafka_copy))

    def put_kafka_back(self) -> None:
        """What the copy does not hold is lost."""

        def replace() -> None:
            shutil.rmtree(self.kafka.folder)
            self._kafka_copy.rename(self.kafka.folder)

        self._restarted(replace)

    @property
    def _kafka_copy(self) -> Path:
        return self.kafka.folder.with_name("kafka-copy")

    def _restarted(self, change: Callable[[], object]) -> None:
        self.kafka.stop()
        change()
        self.kafka.start()
        self.kafka.wait()

    def kill_broker(self) -> None:
        process = process_of(self.kafka.pid)
        process.kill()
        process.wait(20)

    def start_broker(self) -> None:
        self.kafka.start()
        self.kafka.wait()

    def restart_broker(self) -> None:
        self.kill_broker()
        self.start_broker()


def process_of(pid: int | None) -> psutil.Process:
    assert pid is not None
    return psutil.Process(pid)


def end_other_sessions(dsn: str) -> None:
    """Every session on the database but this one loses its server process."""
    [(ended,)] = query(
        dsn,
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    assert ended > 0
