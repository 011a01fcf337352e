"""The folder of a stack, and the lock that lets one command at a time change it."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from epochline.errors import StackError

MARKER = "epochline-home"
_LOCK_PATIENCE = 600.0


def project_root() -> Path:
    """The checkout from which this package was imported: the folder that holds `include/`."""
    return Path(__file__).resolve().parents[3]


def default_home() -> Path:
    """`$EPOCHLINE_HOME`, or `.epochline/` in the checkout; always absolute."""
    chosen = os.environ.get("EPOCHLINE_HOME")
    return Path(chosen).expanduser().absolute() if chosen else project_root() / ".epochline"


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
        self.root = (root or default_home()).absolute()
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
