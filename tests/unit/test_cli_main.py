"""The command line's manners: help everywhere, one paragraph for an error, an exit code that is documented."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epochline import cli
from epochline.errors import DeclarationError, StackError
from tests.commands import caller

COMMANDS = (
    "up",
    "down",
    "status",
    "feed",
    "migrate",
    "plan",
    "run",
    "ledger",
    "lag",
    "verify-topic",
    "sql",
    "abort",
    "declare-loss",
    "adopt-topic",
    "requeue",
    "extend-back",
    "drop",
    "pause",
    "resume",
    "actions",
    "janitor",
    "trigger",
    "demo",
)


@pytest.fixture
def called(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    for name in ("EPOCHLINE_POSTGRES", "EPOCHLINE_KAFKA"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}", raising=False)

    return caller(monkeypatch, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_its_exit_codes(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"])

    assert shown.exit_code == 0
    assert "Exit code" in " ".join(shown.output.split())


def test_the_list_of_commands_is_complete():
    shown = CliRunner().invoke(cli.app, ["--help"])

    assert shown.exit_code == 0
    assert all(command in shown.output for command in COMMANDS)


def test_the_version_is_printed(called):
    code, out, _ = called("--version")

    assert (code, out.split()[0]) == (0, "epochline")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("sql", "SELECT 1"), 1, "epochline up"),
        (("ledger",), 1, "epochline up"),
        (("plan", "nothing"), 2, "declares a pipeline 'nothing'"),
        (("run", "nothing"), 2, "declares a pipeline 'nothing'"),
        (("lag", "nothing"), 2, "declares a pipeline 'nothing'"),
        (("trigger", "nothing"), 1, "no Airflow runs"),
        (("demo", "--log", "/does/not/exist"), 1, "/does/not/exist is not a file"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_an_error_is_one_paragraph_without_a_traceback(called, arguments, code, said):
    ended, out, err = called(*arguments)

    assert (ended, out) == (code, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("sql", "--json"),
        ("sql", "--json", "--csv", "SELECT 1"),
        ("ledger", "--epoch", "3"),
        ("abort", "p", "1"),
        ("no",),
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_two(called, arguments):
    assert called(*arguments)[0] == 2


@pytest.mark.parametrize(("error", "code"), [(StackError("a\nb"), 1), (DeclarationError("c"), 2)], ids=["1", "2"])
def test_the_exit_code_is_that_of_the_error(called, monkeypatch, error, code):
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)

    ended, _, err = called()

    assert ended == code
    assert err == f"error: {' '.join(str(error).split())}\n"


def test_what_nobody_expected_is_said_shortly_and_kept_in_a_file(called, monkeypatch):
    def fail() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(cli, "app", fail)

    code, _, err = called()

    assert code == 70
    assert "ZeroDivisionError: oh" in err
    kept = Path(err.split("is in ")[1].split(";")[0])
    assert "ZeroDivisionError: oh" in kept.read_text()
    kept.unlink()


def test_an_interruption_ends_with_130(called, monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)

    code, _, err = called()

    assert (code, err) == (130, "interrupted\n")
