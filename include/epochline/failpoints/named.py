"""What a failpoint does, and which one the environment names.

``EPOCHLINE_FAILPOINT`` holds one or several, separated by commas, each ``NAME[@N]:ACTION[:once]``. ``@N`` acts only
the Nth time that this process passes the name. ``once`` acts in the first process that gets there and in no later
one, as the record shows; a task that is tried again then gets through. Actions:

- ``exit``: end at once with code 137, as by SIGKILL; nothing is cleaned up;
- ``stop``: SIGSTOP to itself; SIGCONT lets it go on;
- ``raise``: an error that nobody foresaw;
- ``sleep:SECONDS``.

Whatever acts is first written down, a line ``NAME`` per act, in the file that ``EPOCHLINE_FAILPOINT_RECORD`` names.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochline.errors import ConfigurationError
from epochline.failpoints.sites import known_failpoints

NAMED = "EPOCHLINE_FAILPOINT"
RECORD = "EPOCHLINE_FAILPOINT_RECORD"
SWITCH = "EPOCHLINE_FAILPOINTS"

KILLED = 137
"""Exit code of ``exit``: what a shell shows after SIGKILL."""

_ORDER = re.compile(
    r"(?P<name>[\w.]+)(?:@(?P<nth>[1-9]\d*))?:(?P<action>exit|stop|raise|sleep:(?P<seconds>\d+(?:\.\d+)?))(?P<once>:once)?"
)


class FailpointError(Exception):
    """What ``raise`` raises: none of our own errors, because it stands for one that nobody foresaw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    name: str
    nth: int | None
    action: str
    seconds: float
    once: bool


class _Armed:
    """The failpoints that an environment names. Read when first passed, so that a mistake is said where it is seen."""

    def __init__(self, text: str, record: Path | None, *, forbidden: bool) -> None:
        self._text = text
        self._record = record
        self._forbidden = forbidden
        self._orders: Sequence[_Order] | None = None
        self._passed: Counter[str] = Counter()

    def check(self) -> Sequence[_Order]:
        """The orders.

        Raises:
            ConfigurationError: this install forbids failpoints, or the text names none that exists.
        """
        if self._orders is None:
            if self._forbidden:
                raise ConfigurationError(
                    f"{SWITCH} forbids failpoints here, but {NAMED} is set ({self._text!r}). Nothing was done. Unset"
                    f" {NAMED}."
                )
            self._orders = [_order(one.strip()) for one in self._text.split(",")]
            if self._record is None and any(order.once for order in self._orders):
                raise ConfigurationError(f"{NAMED}: `once` needs {RECORD}, a file that tells whether it was before.")
        return self._orders

    def passing(self, name: str) -> None:
        self._passed[name] += 1
        for order in self.check():
            if order.name == name and order.nth in (None, self._passed[name]) and self._write_down(order):
                _act(order)

    def _write_down(self, order: _Order) -> bool:
        """Record the act; False where it must not happen again."""
        if self._record is None:
            return True
        with self._record.open("a+") as record:
            fcntl.flock(record, fcntl.LOCK_EX)
            record.seek(0)
            if order.once and order.name in record.read().split():
                return False
            record.write(f"{order.name}\n")
        return True


def _order(text: str) -> _Order:
    found = _ORDER.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{NAMED}: {text!r} cannot be understood; write NAME[@N]:ACTION[:once], where ACTION is exit, stop,"
            " raise or sleep:SECONDS."
        )
    name, known = found["name"], known_failpoints()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        raise ConfigurationError(f"{NAMED}: there is no failpoint {name!r}; near it: {', '.join(near) or 'none'}.")
    return _Order(
        name=name,
        nth=int(found["nth"]) if found["nth"] else None,
        action=found["action"].partition(":")[0],
        seconds=float(found["seconds"] or 0),
        once=bool(found["once"]),
    )


def _act(order: _Order) -> None:
    match order.action:
        case "exit":
            os._exit(KILLED)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(order.seconds)
        case _:
            raise FailpointError(f"failpoint {order.name}")


def _named_in(environment: Mapping[str, str]) -> _Armed | None:
    text = environment.get(NAMED, "").strip()
    if not text:
        return None
    record = environment.get(RECORD)
    # Whatever the switch is set to forbids: a slip of the pen must not let failpoints in.
    return _Armed(text, Path(record) if record else None, forbidden=bool(environment.get(SWITCH)))


_armed = _named_in(os.environ)


def arm(environment: Mapping[str, str]) -> None:
    """Name failpoints for this process anew; it is done by itself from the process's environment at import."""
    global _armed
    _armed = _named_in(environment)


def armed() -> bool:
    """Whether a failpoint is named.

    Raises:
        ConfigurationError: one is named where they are forbidden, or one that does not exist.
    """
    return _armed is not None and bool(_armed.check())


def failpoint(name: str) -> None:
    """A place at which this process may be made to fail; nothing but a look at one variable where none is named.

    Raises:
        FailpointError: the environment says so.
        ConfigurationError: as for `armed`.
    """
    if _armed is not None:
        _armed.passing(name)
