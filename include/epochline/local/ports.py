"""Choose free ports on loopback, and keep them across restarts."""

import json
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from epochline.errors import StackError
from epochline.local.home import Home, wait_until, write_private

LOOPBACK = "127.0.0.1"
# All below the kernel's range for outgoing connections (from 32768 on Linux), so that a stopped server does not lose
# its port to a browser.
DEFAULTS: Mapping[str, int] = {
    "postgres": 25432, "kafka": 29092, "kafka_controller": 29093, "airflow": 28080, "spark": 25002,
    "spark_master": 27077,
}  # fmt: skip
_FALLBACK = range(20_000, 32_000)
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
        known = self.known()
        if name not in known:
            raise StackError(f"the stack in {self._home} was never started; run `epochline up`")
        return known[name]

    def settle(self, running: set[str]) -> dict[str, int]:
        """Choose missing ports and replace those that other processes took. Servers in `running` keep theirs.

        Raises `StackError` if a port was taken by another process, and the running Airflow still uses it.
        """
        known = self.known()
        # Airflow is configured with all ports; PostgreSQL and Kafka know only their own.
        airflow_runs = any(part.startswith("airflow") for part in running)
        chosen: dict[str, int] = {}
        for name, default in DEFAULTS.items():
            kept = known.get(name)
            if kept is not None and (name in running or becomes_free(kept)):
                chosen[name] = kept
            elif kept is not None and airflow_runs:
                raise StackError(
                    f"port {kept} of {name} is now used by {holder(kept)}, but this stack's running Airflow is"
                    " configured with it; end that process, or run `epochline down` and then `epochline up`"
                )
            else:
                chosen[name] = self._choose(default, set(chosen.values()) | set(known.values()))
        if chosen != known:
            write_private(self._home.ports, json.dumps(chosen, indent=2) + "\n")
        return chosen

    def _choose(self, default: int, taken: set[int]) -> int:
        for port in (default, *random.sample(_FALLBACK, 200)):
            if port not in taken and is_free(port):
                return port
        raise StackError("no free port was found on 127.0.0.1")
