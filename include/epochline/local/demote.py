"""PostgreSQL refuses to run as root: when root starts the stack, its server runs as an ordinary account."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epochline.errors import StackError

ACCOUNT = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who owns the data folder, and what to put before a command so that it runs as that account."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Give a file or folder to the account."""
        if (path.stat().st_uid, path.stat().st_gid) != (self.uid, self.gid):
            os.chown(path, self.uid, self.gid)


def server_account(data: Path, needed: Sequence[Path]) -> Account:
    """The account that runs the server: the caller's, or for root the data folder's owner, else `nobody`.

    A root user's checkout often lies below a folder that nobody else may enter (`/root`). The account then
    keeps the one capability to pass closed folders; no mode of the user's folders is changed.

    Args:
        data: the data folder, existing or not.
        needed: the paths that the account must be able to reach.
    """
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        where = "it comes with util-linux" if sys.platform == "linux" else "it exists on Linux only"
        raise StackError(
            "PostgreSQL does not run as root, and `setpriv`, which would start it as another account, was "
            f"not found ({where}); run `epochline up` as an ordinary user"
        )
    account = pwd.getpwnam(ACCOUNT)
    uid, gid = account.pw_uid, account.pw_gid
    if data.exists() and data.stat().st_uid != 0:
        uid, gid = data.stat().st_uid, data.stat().st_gid
    prefix = [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if not all(_open_to_all(path) for path in needed):
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return Account(uid=uid, gid=gid, prefix=(*prefix, "--"))


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents) if parent.exists())
