"""Run PostgreSQL as an ordinary account if root starts the stack, because it refuses to run as root."""

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
    """The owner of the data folder, and the command prefix that runs a command as this account."""

    uid: int
    gid: int
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> None:
        """Give a file or folder to the account."""
        if (path.stat().st_uid, path.stat().st_gid) != (self.uid, self.gid):
            os.chown(path, self.uid, self.gid)


def server_account(data: Path, needed: Sequence[Path]) -> Account:
    """The account that runs the server: the caller's, or for root the data folder's owner, else `nobody`.

    Root's checkout often lies below a folder that no other account may enter (`/root`). Then the account keeps the
    capability to pass closed folders, and no other; the modes of folders are not changed. PostgreSQL's programs look
    for each other with access(2), which ignores the capability unless the secure bit ``no_setuid_fixup`` is set
    (ADR 0005). The account must be able to reach the needed paths.

    Raises:
        StackError: the caller is root, and `setpriv` is not installed.
    """
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        where = "it comes with util-linux" if sys.platform == "linux" else "it exists on Linux only"
        raise StackError(
            "PostgreSQL does not run as root, and `setpriv`, which starts it as another account, was not found"
            f" ({where}); run `epochline up` as an ordinary user"
        )
    account = pwd.getpwnam(ACCOUNT)
    uid, gid = account.pw_uid, account.pw_gid
    if data.exists() and data.stat().st_uid != 0:
        uid, gid = data.stat().st_uid, data.stat().st_gid
    prefix = [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    if not all(_open_to_all(path) for path in needed):
        prefix += [
            "--securebits=+no_setuid_fixup", "--bounding-set=-all,+dac_override",
            "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override",
        ]  # fmt: skip
    return Account(uid=uid, gid=gid, prefix=(*prefix, "--"))


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (real, *real.parents) if parent.exists())
