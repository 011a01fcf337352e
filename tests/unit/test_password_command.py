"""The command that gives a password of PostgreSQL: its one line goes into the URL, and nowhere else."""

import sys
import time

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from epochline.config import logins
from epochline.config.connections import Connection, libpq_url
from epochline.config.logins import complete, divided
from epochline.errors import ConfigurationError

TOKEN = "db:5432/?Action=connect&Key=%2F+ä"


def url(command: str, **changes: object) -> str:
    extra = {"password_command": command, "sslmode": "verify-full", "sslrootcert": "/etc/my ca+1.pem"}
    fields = {"host": "db", "schema": "my db", "login": "me@x", "extra": extra, **changes}
    return libpq_url(Connection(where="here", **fields))  # type: ignore[arg-type]


def test_the_line_of_a_command_is_the_password_and_libpq_refuses_the_url_before() -> None:
    """K21."""
    asked = url(f"{sys.executable} -c \"print('{TOKEN}')\"")

    assert parse_dsn(complete(asked)) == {
        "host": "db", "port": "5432", "dbname": "my db", "user": "me@x", "password": TOKEN, "sslmode": "verify-full",
        "sslrootcert": "/etc/my ca+1.pem",
    }  # fmt: skip
    with pytest.raises(psycopg2.ProgrammingError, match="password_command"):
        parse_dsn(asked)
    assert "password" not in parse_dsn(divided(asked)[0])
    for plain in ("postgresql://me:pw@h/db?sslmode=require", "host=h password=a?b"):
        assert (complete(plain), divided(plain)) == (plain, (plain, None))


def test_a_connection_has_a_password_or_a_command() -> None:
    with pytest.raises(ConfigurationError, match="^here has a password and a password_command"):
        url("true", password="canary")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo canary; echo canary >&2; exit 3'", r"\(sh\) ended with code 3 and 1 lines"),
        ("sh -c 'echo canary; echo canary'", "code 0 and 2 lines"),
        ("true", "code 0 and 0 lines"),
        ("echo", "code 0 and 1 lines"),
    ],
    ids=["code", "lines", "nothing", "empty"],
)
def test_a_command_that_gives_no_password_is_named_and_its_output_is_not(
    command: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """SEC-4: a retry may help, as where an issuer was away."""
    with pytest.raises(psycopg2.OperationalError, match=said) as caught:
        complete(url(command))
    assert "canary" not in f"{caught.value} {capfd.readouterr()}"


@pytest.mark.parametrize(
    ("command", "said"), [("/nowhere/x", "No such file"), ("a 'b", "No closing quotation"), (" ", "")]
)
def test_a_command_that_cannot_be_started_is_an_error_of_the_connection(command: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^password_command cannot be started .*{said}"):
        complete(url(command))


def test_a_command_that_does_not_end_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_SECONDS", 0.3)
    began = time.monotonic()

    with pytest.raises(psycopg2.OperationalError, match=r"\(sh\) did not end in 0.3 s"):
        complete(url("sh -c 'sleep 60 & wait'"))
    assert time.monotonic() - began < 30
