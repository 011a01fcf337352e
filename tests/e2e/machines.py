"""Machines of a test, held apart by the kernel's namespaces; only root can make them.

Each has a network, a host name, processes, temporary folders, a home and an account of its own. None of them sees the
checkout, or the home of whoever runs the tests. `Machine.kill` ends all processes of a machine at once, as a power cut
does.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.wheels import ROOT

_NETWORK = f"10.{100 + os.getpid() % 100}"
"""Of this process's own, as are the names of links and namespaces."""

SERVERS = f"{_NETWORK}.0.1"
"""The address of the servers that every machine reaches."""

_FIRST_ACCOUNT = 31000

_START = """
hostname "$NAME"
for file in hosts passwd; do mount --bind "$AT/$file" "/etc/$file"; done
mkdir -p "$AT/python"
mount --bind "$PYTHON" "$AT/python"
for hidden in $HIDDEN; do [ ! -d "$hidden" ] || mount -t tmpfs -o mode=755 tmpfs "$hidden"; done
mkdir -p "$PYTHON"
mount --bind "$AT/python" "$PYTHON"
mount -t tmpfs -o mode=1777 tmpfs /tmp
cd "$HOME"
setpriv --reuid "$ACCOUNT" --regid "$ACCOUNT" --clear-groups --inh-caps=-all "$@" &
while :; do sleep 1; done
"""
"""The first process of a machine. It outlives the command, and takes in what the command leaves behind."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@dataclass
class Machine:
    """A machine with the command that was started on it, and all that the command has started."""

    name: str
    number: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{_NETWORK}.{self.number}.2"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def _link(self) -> str:
        return f"ep{os.getpid()}v{self.number}"

    @property
    def _namespace(self) -> str:
        return f"epochline-{os.getpid()}-{self.name}"

    def make(self) -> None:
        """Give it a network, and folders that no other account reads."""
        account = _FIRST_ACCOUNT + self.number
        self.home.mkdir(parents=True)
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        (self.folder / "passwd").write_text(
            f"root:x:0:0::/root:/bin/sh\n{self.name}:x:{account}:{account}::{self.home}:/bin/sh\n"
        )
        self.home.chmod(0o700)
        _ip("netns", "add", self._namespace)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _ip("addr", "add", f"{_NETWORK}.{self.number}.1/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        for words in (f"addr add {self.address}/30 dev eth0", "link set eth0 up", "link set lo up"):
            _ip("-n", self._namespace, *words.split())
        _ip("-n", self._namespace, "route", "add", "default", "via", f"{_NETWORK}.{self.number}.1")

    def start(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start its process, with these variables and no others."""
        self.plug_in()
        account = _FIRST_ACCOUNT + self.number
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, account, account)
        own = {
            "NAME": self.name, "USER": self.name, "HOME": str(self.home), "AT": str(self.folder), "ACCOUNT": str(account),
            "PYTHON": sys.base_prefix, "HIDDEN": f"{Path.home()} {ROOT}",
        }  # fmt: skip
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *apart, "bash", "-euc", _START, "-", *command],
                env={**variables, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that runs on it; the first of them holds the others."""
        return [] if self.process is None else psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """Cut its power: with the first process of its namespace, the kernel kills all the others."""
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):
                [*self.processes(), psutil.Process(self.process.pid)][0].kill()
            self.process.wait(30)
            self.process = None

    def cut_off(self) -> None:
        """Unplug its network, without a word to anybody."""
        _ip("link", "set", self._link, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self._link, "up")

    def remove(self) -> None:
        self.kill()
        for words in (f"link del {self._link}", f"netns del {self._namespace}"):
            subprocess.run(["ip", *words.split()], check=False)


@dataclass
class Room:
    """A folder for machines, by their names."""

    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)

    def machine(self, name: str) -> Machine:
        """The machine with this name, made where it is not there yet."""
        if name not in self.machines:
            number = len(self.machines) + 1
            self.machines[name] = Machine(name, number, self.folder / name)
            self.machines[name].make()
        return self.machines[name]

    def kill(self) -> None:
        """Cut the power of every machine."""
        for machine in self.machines.values():
            machine.kill()


@contextmanager
def machine_room(folder: Path) -> Iterator[Room]:
    """Machines that are gone after the block, and the address of their servers."""
    room = Room(folder)
    _ip("addr", "add", f"{SERVERS}/32", "dev", "lo")
    try:
        yield room
    finally:
        for machine in room.machines.values():
            machine.remove()
            shutil.rmtree(machine.folder, ignore_errors=True)
        _ip("addr", "del", f"{SERVERS}/32", "dev", "lo")
