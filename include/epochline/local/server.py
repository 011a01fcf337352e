"""What the servers of a home that are one process each have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import psutil

from epochline.local.home import Home
from epochline.local.ports import Ports, is_listening
from epochline.local.process import Daemon


class Server:
    """One server of one home: its folder, its process (`Daemon` has the signals and ``owns``) and its port."""

    name: ClassVar[str]

    def __init__(
        self,
        home: Home,
        ports: Ports,
        settings: Mapping[str, str],
        *,
        stop_signals: Sequence[tuple[signal.Signals, float]],
        owns: Callable[[psutil.Process], bool] = lambda _process: False,
    ) -> None:
        self._home = home
        self._ports = ports
        self._settings = settings
        self.folder = home.path(self.name)
        self.daemon = Daemon(home, self.name, stop_signals=stop_signals, owns=owns)

    @property
    def pid(self) -> int | None:
        """The pid of the server's process while it is alive."""
        return self.daemon.pid

    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""
        return self._ports.get(self.name)

    def wait(self, seconds: float = 120) -> None:
        """Wait until the server answers."""
        self.daemon.wait_ready(self.health, seconds)

    def health(self) -> str | None:
        """None if the server answers; else what is wrong."""
        return None if is_listening(self.port) else f"nothing listens on port {self.port}"

    def stop(self) -> bool:
        """End the server with everything that it started; its data stays. Returns whether it was running."""
        return self.daemon.stop()


def java_environment() -> dict[str, str]:
    """What a JVM needs of the caller's environment: neither another server's settings nor secrets."""
    kept = ("PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "LANG", "HOME", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
