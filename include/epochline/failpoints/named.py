"""Failpoints that the environment names, and their actions.

``EPOCHLINE_FAILPOINT`` holds one or more, separated by commas, each as ``NAME[@N]:ACTION[:once]``. With ``@N`` the
action runs only the Nth time that this process passes the name. With ``once`` it runs in the first process that passes
the name, and in no later one; so the retry of a task succeeds. Actions:

- ``exit``: end at once with code 137, as by SIGKILL, without cleaning up;
- ``stop``: send SIGSTOP to itself; SIGCONT resumes it;
- ``raise``: raise an unexpected error;
- ``sleep:SECONDS``.

Before each action, its ``NAME`` is written as a line into the file that ``EPOCHLINE_FAILPOINT_RECORD`` names.
"""

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

NAMED = "EPOCHLINE_FAILPOINT"
RECORD = "EPOCHLINE_FAILPOINT_RECORD"
SWITCH = "EPOCHLINE_FAILPOINTS"

KILLED = 137
"""Exit code of ``exit``, as a shell shows it after SIGKILL."""

_SYNTAX = re.compile(
    r"(?P<name>[\w.]+)(?:@(?P<nth>[1-9]\d*))?:(?P<action>exit|stop|raise|sleep:(?P<seconds>\d+(?:\.\d+)?))(?P<once>:once)?"
)


class FailpointError(Exception):
    """Raised by the action ``raise``. It is not an `EpochlineError`, because it stands for an unexpected error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    name: str
    nth: int | None
    action: str
    seconds: float
    once: bool


class _Armed:
    """The faults that an environment names. They are parsed at first use, so that the caller sees a mistake."""

    def __init__(self, text: str, record: Path | None, *, forbidden: bool) -> None:
        self._text = text
        self._record = record
        self._forbidden = forbidden
        self._faults: Sequence[_Fault] | None = None
        self._passed: Counter[str] = Counter()

    def check(self) -> Sequence[_Fault]:
        """The faults.

        Raises:
            ConfigurationError: this installation forbids failpoints, or the text cannot be parsed.
        """
        if self._faults is None:
            if self._forbidden:
                raise ConfigurationError(
                    f"{SWITCH} forbids failpoints here, but {NAMED} is set ({self._text!r}). Nothing was done. Unset"
                    f" {NAMED}."
                )
            faults = [_parse(text.strip()) for text in self._text.split(",")]
            if self._record is None and any(fault.once for fault in faults):
                raise ConfigurationError(f"{NAMED}: `once` needs {RECORD}, a file that records past actions.")
            self._faults = faults
        return self._faults

    def passing(self, name: str) -> None:
        self._passed[name] += 1
        for fault in self.check():
            if fault.name == name and fault.nth in (None, self._passed[name]) and self._write_record(fault):
                _act(fault)

    def _write_record(self, fault: _Fault) -> bool:
        """Record the action. Returns False if it ran before and must not run again."""
        if self._record is None:
            return True
        with self._record.open("a+") as record:
            fcntl.flock(record, fcntl.LOCK_EX)
            record.seek(0)
            if fault.once and fault.name in record.read().split():
                return False
            record.write(f"{fault.name}\n")
        return True


def _parse(text: str) -> _Fault:
    found = _SYNTAX.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"{NAMED}: {text!r} cannot be parsed; write NAME[@N]:ACTION[:once], where ACTION is exit, stop, raise or"
            " sleep:SECONDS."
        )
    # Imported here: `calls` imports this module.
    from epochline.failpoints.calls import known_failpoints

    name, known = found["name"], known_failpoints()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        raise ConfigurationError(f"{NAMED}: there is no failpoint {name!r}; near it: {', '.join(near) or 'none'}.")
    return _Fault(
        name=name,
        nth=int(found["nth"]) if found["nth"] else None,
        action=found["action"].partition(":")[0],
        seconds=float(found["seconds"] or 0),
        once=bool(found["once"]),
    )


def _act(fault: _Fault) -> None:
    match fault.action:
        case "exit":
            os._exit(KILLED)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(fault.seconds)
        case _:
            raise FailpointError(f"failpoint {fault.name}")


def _named_in(environment: Mapping[str, str]) -> _Armed | None:
    text = environment.get(NAMED, "").strip()
    if not text:
        return None
    record = environment.get(RECORD)
    # Any value of the switch forbids failpoints, so that a typo does not allow them.
    return _Armed(text, Path(record) if record else None, forbidden=bool(environment.get(SWITCH)))


_armed = _named_in(os.environ)


def arm(environment: Mapping[str, str]) -> None:
    """Replace the failpoints of this process by those of an environment. The import arms those of `os.environ`."""
    global _armed
    _armed = _named_in(environment)


def armed() -> bool:
    """Whether the environment names a failpoint.

    Raises:
        ConfigurationError: failpoints are forbidden here, or the failpoint does not exist.
    """
    return _armed is not None and bool(_armed.check())


def failpoint(name: str) -> None:
    """Run the action that the environment names for this failpoint. Without one, this only reads a variable.

    Raises:
        FailpointError: the action is ``raise``.
        ConfigurationError: as for `armed`.
    """
    if _armed is not None:
        _armed.passing(name)
