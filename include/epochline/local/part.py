"""The parts of the embedded stack: the processes, the port and the settings of each."""

import os
import signal
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psutil

from epochline.local.home import Home, Ports, is_listening
from epochline.local.process import Daemon


class Part:
    """One part of a home's stack: its folder, its processes by name, and its port."""

    name: ClassVar[str]
    stop_signals: ClassVar[Sequence[tuple[signal.Signals, float]]] = ((signal.SIGTERM, 15), (signal.SIGKILL, 5))

    def __init__(self, home: Home, ports: Ports, *processes: str) -> None:
        self._home = home
        self._ports = ports
        self._daemons = {
            name.removeprefix(f"{self.name}-"): Daemon(
                home, name, stop_signals=self.stop_signals, owns=self._owns, idle=self._is_idle
            )
            for name in processes
        }
        self.folder = home.path(self.name)

    def _owns(self, process: psutil.Process) -> bool:
        return False

    def _is_idle(self, process: psutil.Process) -> bool:
        return False

    @property
    def daemons(self) -> Mapping[str, Daemon]:
        """The processes by name."""
        return self._daemons

    @property
    def pids(self) -> dict[str, int | None]:
        """The pid of each process, None if it does not run."""
        return {name: daemon.pid for name, daemon in self.daemons.items()}

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._ports.get(self.name)

    def health(self) -> str | None:
        """None if the part answers; else what is wrong."""
        return None if is_listening(self.port) else f"nothing listens on port {self.port}"

    def stop(self) -> bool:
        """End the processes with everything that they started; data stays. Returns whether one was running."""
        for daemon in self.daemons.values():
            daemon.ask_to_stop()  # all at once, because each takes seconds to end
        stopped = [daemon.stop() for daemon in self.daemons.values()]
        return any(stopped)


class Server(Part):
    """A part of one process."""

    def __init__(self, home: Home, ports: Ports, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(home, ports, self.name)
        self.daemon = self._daemons[self.name]
        self._settings = {**shipped_settings(self.name), **(settings or {})}

    @property
    def pid(self) -> int | None:
        """The pid of the server's process while it is alive."""
        return self.daemon.pid

    def wait(self, seconds: float = 120) -> None:
        """Wait until the server answers."""
        self.daemon.wait_ready(self.health, seconds)


def shipped_settings(part: str) -> dict[str, str]:
    """The settings of a part that are the same in every home."""
    shipped: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
    return shipped[part]


def java_environment() -> dict[str, str]:
    """What a JVM needs of the caller's environment: neither another server's settings nor secrets."""
    names = ("PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG", "HOME", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ}
