"""Logs in to PostgreSQL. Where a command gives the password, it is asked for each session, because passwords expire.

RDS, Cloud SQL and Azure give passwords that last minutes. A session that is open outlasts its password.
"""

import os
import shlex
import signal
import subprocess
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg2

from epochline.config.connections import PASSWORD_COMMAND
from epochline.errors import ConfigurationError

_SECONDS = 30
"""Longest time for a password command. The slowest command lines of clouds take some seconds."""


def log_in(dsn: str, **options: Any) -> Any:
    """Open a session as `psycopg2.connect` does, with a URL that may name a command.

    Raises:
        psycopg2.Error: as psycopg2; an OperationalError also if the command prints no password.
        ConfigurationError: the command cannot be started.
    """
    return psycopg2.connect(complete(dsn), **options)


def complete(dsn: str) -> str:
    """The URL that libpq takes: with the password that the URL's command prints now. Raises as `log_in`."""
    plain, command = divided(dsn)
    if command is None:
        return dsn
    at = urlsplit(plain)
    login, _, host = at.netloc.rpartition("@")
    return at._replace(netloc=f"{login}:{quote(_printed(command), safe='')}@{host}").geturl()


def divided(dsn: str) -> tuple[str, str | None]:
    """The URL without its command, and the command, if it has one."""
    at = urlsplit(dsn)
    options = dict(parse_qsl(at.query))
    command = options.pop(PASSWORD_COMMAND, None)
    if command is None:
        return dsn, None
    return at._replace(query=urlencode(options, quote_via=quote)).geturl(), command


def _printed(command: str) -> str:
    """The one line that a command prints. No error shows what a command printed."""
    try:
        words = shlex.split(command)
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError, IndexError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{PASSWORD_COMMAND} cannot be started ({reason}).") from None
    with process:
        try:
            lines = process.communicate(timeout=_SECONDS)[0].splitlines()
        except BaseException as error:
            # A time-out of Airflow as well. The command may have started others, which hold its output open.
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise psycopg2.OperationalError(f"{PASSWORD_COMMAND} ({words[0]}) did not end in {_SECONDS} s") from None
    if process.returncode != 0 or len(lines) != 1 or not lines[0]:
        raise psycopg2.OperationalError(
            f"{PASSWORD_COMMAND} ({words[0]}) ended with code {process.returncode} and {len(lines)} lines of output,"
            " which are not shown; one line and code 0 are needed. Run it by hand, as the user of this process"
        )
    return lines[0]
