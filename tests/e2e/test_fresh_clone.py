"""The first commands in a fresh clone below a folder that no other account may enter, as `/root` is."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCOUNTS = ["root", "nobody"] if os.geteuid() == 0 else [pwd.getpwuid(os.geteuid()).pw_name]
As = Callable[[str, str], str]

pytestmark = pytest.mark.slow  # An installation takes minutes, and CI itself is one in a fresh clone.


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """What git keeps of this checkout, with an environment that `make setup` made."""
    closed = Path(tempfile.mkdtemp(prefix="epochline-closed-", dir="/var/tmp"))
    try:
        folder = closed / "epochline"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], check=True)
        done = subprocess.run(
            ["make", "setup"], cwd=folder, env=_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder
    finally:
        shutil.rmtree(closed)


@pytest.fixture
def run_as(clone: Path) -> As:
    """Runs a command in the clone as an account that owns the folder; gives what the command printed."""

    def run(account: str, command: str) -> str:
        prefix: list[str] = []
        if os.geteuid() == 0 and account != "root":
            # The one capability only lets it read a Python below a closed folder; its own clone needs none.
            prefix = [
                "setpriv", f"--reuid={account}", f"--regid={pwd.getpwnam(account).pw_gid}", "--clear-groups",
                "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
            ]  # fmt: skip
        done = subprocess.run(
            [*prefix, "bash", "-euo", "pipefail", "-c", f"source .venv/bin/activate; {command}"],
            cwd=clone, env=_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def _environment() -> dict[str, str]:
    """That of a terminal: nothing of this project, and no other environment's Python."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("EPOCHLINE_", "AIRFLOW", "PYTHON"))}
    path = [part for part in kept["PATH"].split(":") if part != os.fspath(ROOT / ".venv" / "bin")]
    return kept | {"PATH": ":".join(path), "VIRTUAL_ENV": ""}


def _owned_by(account: str, clone: Path) -> None:
    """Give the clone to an account, as if it had made the clone. Its packages stay readable to all."""
    if os.geteuid() != 0:
        return
    entry = pwd.getpwnam(account)
    folders = [clone.parent, clone, *(one for one in clone.iterdir() if one.name != ".venv")]
    for folder in folders[:2]:
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", *map(os.fspath, folders[2:])], check=True)


@pytest.mark.parametrize("account", ACCOUNTS)
def test_the_first_commands_work_below_a_closed_folder(clone: Path, run_as: As, account: str) -> None:
    """U1: as root, whose servers run as another account, and as an ordinary user."""
    _owned_by(account, clone)
    assert clone.parent.stat().st_mode & 0o777 == 0o700

    try:
        said = run_as(account, "epochline up postgres kafka")
        assert "postgres  18" in said
        run_as(account, "printf '10.0.0.1 - - [17/May/2015:10:05:00 +0000] \"GET / HTTP/1.1\" 200 1\\n' > one.log")
        run_as(account, "epochline feed one.log --topic access_log && epochline run access_log")
        shown = run_as(account, "epochline sql 'SELECT client, requests FROM requests_per_client' --csv")
        assert "10.0.0.1,1" in shown
    finally:
        run_as(account, "epochline down --wipe")
