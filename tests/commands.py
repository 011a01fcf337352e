"""Commands of `epochline`, called in the process of a test."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epochline import cli
from tests.databases import as_connection


@dataclass(frozen=True)
class Call:
    """Runs a command; gives its exit code and what it wrote to standard output and standard error."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    first: tuple[str, ...] = ()
    """Arguments that come before those of each call."""

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["epochline", *self.first, *map(str, arguments)])
        self.capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        return int(code or 0), out, err

    def shown(self, *arguments: object) -> str:
        """What a command that succeeds writes to standard output."""
        code, out, err = self(*arguments)
        assert code == 0, out + err
        return out

    def json(self, *arguments: object) -> Any:
        """The same of ``--json``, read."""
        return json.loads(self.shown(*arguments, "--json"))

    def refusal(self, *arguments: object, code: int = 1) -> str:
        """What a command that fails with this code writes to standard error, and nothing to standard output."""
        found, out, err = self(*arguments)
        assert (found, out) == (code, ""), out + err
        return err


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str) -> Call:
    """Calls commands; the arguments ``first`` come before those of each call."""
    return Call(monkeypatch, capsys, first)


def kafka_connection(bootstrap: str) -> str:
    """A connection to Kafka, as Airflow reads it from the environment."""
    return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}})


def connect_to(monkeypatch: pytest.MonkeyPatch, *, postgres: str | None = None, kafka: str | None = None) -> None:
    """Set the connections that commands find; ``postgres`` is a libpq URL, ``kafka`` addresses of brokers."""
    if postgres is not None:
        monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", as_connection(postgres))
    if kafka is not None:
        monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", kafka_connection(kafka))


def environment_of(folder: Path, *, postgres: str, kafka: str, **more: str) -> dict[str, str]:
    """The environment of a command that finds no stack, the folder's declarations and these servers."""
    return {
        **os.environ,
        "EPOCHLINE_HOME": str(folder / "no stack"),
        "EPOCHLINE_DAGS": str(folder),
        "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(postgres),
        "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka_connection(kafka),
        **more,
    }


def python(
    *arguments: object, variables: Mapping[str, str] | None = None, cwd: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run this Python with further environment variables; it must end well, unless ``check`` is off."""
    command, environment = [sys.executable, *map(str, arguments)], {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def git(folder: Path, *arguments: str) -> str:
    """What git says in a repository, of which a test is the author."""
    named = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


COMMAND = (sys.executable, "-c", "from epochline.cli import main; main()")


def in_processes(folder: Path, *, postgres: str, kafka: str, **environment: str) -> Callable[..., str]:
    """Calls commands in processes of their own, in the environment of `environment_of`.

    A call takes the arguments and the exit code that is expected; it gives what the command said.
    """
    variables = environment_of(folder, postgres=postgres, kafka=kafka, **environment)

    def epochline(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [*COMMAND, *arguments], env=variables, capture_output=True, text=True, check=False, timeout=3600
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    return epochline
