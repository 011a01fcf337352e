"""The folder of a stack, the lock that lets one command at a time change it, and its ports on loopback."""

import fcntl
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from epochline.config.places import home_folder
from epochline.errors import StackError

MARKER = "epochline-home"
_LOCK_PATIENCE = 600.0


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically. Only its owner can read it, at any moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)


def wait_until(done: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Ask again after each pause until it is done; returns False once the time is over."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class Home:
    """The folders of one stack. Nothing is created before `create`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or home_folder()).absolute()
        self.logs = self.root / "logs"
        self.run = self.root / "run"
        self.secrets = self.root / "secrets.json"
        self.ports = self.root / "ports.json"

    def __str__(self) -> str:
        return str(self.root)

    def path(self, *parts: str) -> Path:
        """A path under this home."""
        return self.root.joinpath(*parts)

    def create(self) -> None:
        """Create the folders; a repeat changes nothing.

        Raises:
            StackError: the folder holds other files and is not a home (`down --wipe` would delete them), or it cannot
                be written.
        """
        # In this order: another command may be making the home right now.
        if self.root.is_dir() and any(self.root.iterdir()) and not self.exists():
            raise StackError(
                f"{self.root} is not empty and was not made by epochline; choose another EPOCHLINE_HOME,"
                " so that `down --wipe` can never delete your files"
            )
        try:
            if not self.exists():
                self.root.mkdir(parents=True, exist_ok=True)
                # If root starts the stack, PostgreSQL runs as another account, which must be able to enter the home.
                self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)
                (self.root / MARKER).touch()
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"cannot write the home {self.root}: {error.strerror}; set EPOCHLINE_HOME to a folder you own"
            ) from error

    def exists(self) -> bool:
        """Whether a stack was ever started here."""
        return (self.root / MARKER).is_file()

    def wipe(self) -> None:
        """Delete the home and all data in it, but only if `create` made the folder."""
        if not self.exists():
            return
        # A command that waits for the lock must not meet what is half deleted.
        gone = self.root.with_name(f"{self.root.name}.wiped-{os.getpid()}")
        try:
            self.root.rename(gone)
        except OSError:  # a mount point, or in a folder of somebody else's
            gone = self.root
        shutil.rmtree(gone)

    @contextmanager
    def lock(self, report: Callable[[str], None] = print) -> Iterator[None]:
        """Lock the home for one command. The kernel releases the lock when the process ends."""
        handle = self._acquire(report)
        try:
            yield
        finally:
            os.close(handle)

    def _acquire(self, report: Callable[[str], None]) -> int:
        deadline = time.monotonic() + _LOCK_PATIENCE
        reported = False
        while time.monotonic() < deadline:
            self.create()
            # Lock the folder itself: after a wipe, a waiter sees that its lock is on a deleted folder.
            handle = os.open(self.root, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.root.exists() and os.path.samestat(os.fstat(handle), self.root.stat()):
                    return handle
            except BlockingIOError:
                if not reported:
                    report(f"waiting for another epochline command that holds {self.root}")
                    reported = True
            except FileNotFoundError:
                pass  # wiped between the two checks
            os.close(handle)
            time.sleep(0.2)
        raise StackError(f"another epochline command has held {self.root} for ten minutes; end it and try again")


LOOPBACK = "127.0.0.1"
# All below the kernel's range for outgoing connections (from 32768 on Linux), so that a stopped server does not lose
# its port to a browser.
DEFAULTS: Mapping[str, int] = {
    "postgres": 25432, "kafka": 29092, "kafka_controller": 29093, "airflow": 28080, "spark": 25002,
    "spark_master": 27077,
}  # fmt: skip
FALLBACK = range(20_000, 32_000)
_LISTEN = "0A"  # in /proc/net/tcp


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # Servers set it too. Without it, connections in TIME_WAIT make a port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    """Whether a server listens on this port. Always True except on Linux, where the kernel lists its sockets.

    Check it before connecting to a server that may be down. A client that keeps trying a port in the range of outgoing
    connections eventually connects to itself and occupies the server's port.
    """
    tables = [table for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if table.exists()]
    rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
    return not tables or any(row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def becomes_free(port: int, seconds: float = 5.0) -> bool:
    """Whether the port is free now or within ``seconds``: a server that was just stopped may keep it for a moment."""
    return wait_until(lambda: is_free(port), seconds)


def holder(port: int) -> str:
    """The process that listens on a port, as far as this user may see it."""
    import psutil

    with suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.pid is not None
            if listening and tuple(connection.laddr)[1:] == (port,):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


class Ports:
    """The ports of one home, kept in its `ports.json`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def known(self) -> dict[str, int]:
        """The ports chosen so far; empty before the first `up`."""
        try:
            ports = json.loads(self._home.ports.read_text())
            # An earlier version may have written the file: `settle` chooses the ports that it lacks.
            return {name: int(ports[name]) for name in DEFAULTS if name in ports}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, OSError) as error:
            raise StackError(f"{self._home.ports} cannot be read; delete it to have ports chosen again") from error

    def get(self, name: str) -> int:
        """The port of one server."""
        ports = self.known()
        if name not in ports:
            raise StackError(f"the stack in {self._home} was never started; run `epochline up`")
        return ports[name]

    def settle(self, running: set[str]) -> dict[str, int]:
        """Choose missing ports and replace those that other processes took. Servers in `running` keep theirs.

        Raises `StackError` if a port was taken by another process, and the running Airflow still uses it.
        """
        previous = self.known()
        # Airflow is configured with all ports; PostgreSQL and Kafka know only their own.
        airflow_runs = any(part.startswith("airflow") for part in running)
        chosen: dict[str, int] = {}
        for name, default in DEFAULTS.items():
            port = previous.get(name)
            if port is not None and (name in running or becomes_free(port)):
                chosen[name] = port
            elif port is not None and airflow_runs:
                raise StackError(
                    f"port {port} of {name} is now used by {holder(port)}, but this stack's running Airflow is"
                    " configured with it; end that process, or run `epochline down` and then `epochline up`"
                )
            else:
                chosen[name] = self._choose(default, set(chosen.values()) | set(previous.values()))
        if chosen != previous:
            write_private(self._home.ports, json.dumps(chosen, indent=2) + "\n")
        return chosen

    def _choose(self, default: int, taken: set[int]) -> int:
        for port in (default, *random.sample(FALLBACK, 200)):
            if port not in taken and is_free(port):
                return port
        raise StackError("no free port was found on 127.0.0.1")
