"""The command line's manners: help everywhere, one paragraph for an error, an exit code that is documented."""

import re
import stat
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from epochline import cli
from epochline.cli import execution
from epochline.cli.commands import COMMANDS, load
from epochline.errors import DeclarationError, StackError
from tests.commands import Call

NAMES = list(COMMANDS)
ORDERS = """
from epochline import KafkaSource, Pipeline, PostgresTable, Text, epoch_dag  # airflow

table = PostgresTable(table="orders", columns={"value": "text"})
pipeline = Pipeline(name="orders", source=KafkaSource(topics="orders"), parse=Text(), sinks=table)
dag = epoch_dag(pipeline)
"""


@pytest.mark.parametrize(
    "command",
    [
        *(name for name in NAMES if name != "examples"),
        *(f"examples {name}" for name in ("run", "list", "enable", "disable")),
    ],
)
def test_every_command_explains_itself_and_its_exit_codes(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [*command.split(), "--help"])

    assert shown.exit_code == 0
    assert "Exit code" in " ".join(shown.output.split())


@pytest.mark.parametrize(
    "command",
    [
        "status", "doctor", "validate", "plan", "preview", "ledger", "logs", "quarantine", "why", "list", "lag", "verify-topic", "audit",
        "actions", "savepoints", "epoch-files",
    ],
)  # fmt: skip
def test_a_command_that_only_reads_says_so(command: str) -> None:
    said = " ".join(CliRunner().invoke(cli.app, [command, "--help"]).output.split())

    assert "Changes nothing." in said or "Writes nothing." in said


WITHOUT_JSON = {
    "up", "down", "airflow", "init", "feed", "logs", "savepoint-export", "savepoint-import", "demo",
    "examples enable", "examples disable", "examples run",
}  # fmt: skip
"""Commands that list nothing: they act, or print what others wrote."""


def test_every_command_that_lists_has_json_for_programs() -> None:
    """A new command has it, or is named above."""
    groups = {name: load(name) for name in NAMES}
    commands = {name: command for name, command in groups.items() if not hasattr(command, "commands")}
    for name, group in groups.items():
        commands |= {f"{name} {inner}": command for inner, command in getattr(group, "commands", {}).items()}

    without = {name for name, command in commands.items() if not any("--json" in one.opts for one in command.params)}

    assert without == WITHOUT_JSON


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("wh", ["why"]), ("save", ["savepoint", "savepoints", "savepoint-export", "savepoint-import"]),
     ("why t k --js", ["--json"]), ("examples en", ["enable"]), ("plan ord", ["orders"]), ("lag nobody", [])],
)  # fmt: skip
def test_a_shell_completes_commands_options_and_pipelines(
    typed: str, completed: list[str], called: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)
    (tmp_path / "broken.py").write_text("raise RuntimeError('airflow: print to stdout')")
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))
    monkeypatch.setenv("_EPOCHLINE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"epochline {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))

    code, out, _ = called()

    assert (code, sorted(out.split())) == (0, sorted(completed))


def test_the_script_of_a_shell_is_printed(called: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_EPOCHLINE_COMPLETE", "source_bash")

    assert "complete -o default -F _epochline_completion epochline" in called()[1]


def test_the_status_of_no_stack_names_the_way_on(called: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path))

    code, out, _ = called("status")

    assert (code, out.splitlines()[-1]) == (3, "next: `epochline up`")


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_decides_where_the_lines_of_a_help_end(name: str) -> None:
    assert [paragraph for paragraph in load(name).help.split("\n\n") if "\n" in paragraph] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_shows_every_word_of_a_help(name: str) -> None:
    """A word in brackets would be taken for markup, and left out."""
    shown = CliRunner().invoke(cli.app, [name, "--help"]).output

    assert [word for word in re.findall(r"\S*\[\S+\]\S*", load(name).help) if word not in shown] == []


def test_the_list_of_commands_is_complete() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"])

    assert shown.exit_code == 0
    assert [name for name in NAMES if f" {name} " not in shown.output] == []


def test_the_version_is_printed(called: Call) -> None:
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
        (("feed", "/does/not/exist", "-t", "t"), 1, "/does/not/exist cannot be read: No such file or directory"),
        (("demo", "--log", "/does/not/exist"), 1, "/does/not/exist is not a file"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_an_error_is_one_paragraph_without_a_traceback(
    called: Call, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, out, err = called(*arguments)

    assert (ended, out) == (code, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["sql --json", "sql --json --csv SELECT", "ledger --epoch 3", "abort p 1", "no"])
def test_wrong_use_ends_with_two(called: Call, command: str) -> None:
    assert called(*command.split())[0] == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StackError("a\nb"), 1, "error: a b\n"),
        (DeclarationError("c"), 2, "error: c\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            ModuleNotFoundError("No module named 'fastavro.schema'", name="fastavro.schema"),
            1,
            "error: fastavro is not installed here. It belongs to the extra 'avro': run `make setup`.\n",
        ),
    ],
    ids=["1", "2", "130", "an extra is missing"],
)
def test_the_exit_code_is_that_of_the_error(
    called: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr("epochline.config.extras.find_spec", lambda name: None)  # the tests have every extra
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=error))

    assert called() == (code, "", said)


def test_what_nobody_expected_is_said_shortly_and_kept_in_a_file(called: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=ZeroDivisionError("oh")))

    code, _, err = called()

    assert code == 70
    assert "ZeroDivisionError: oh" in err
    kept = Path(err.split("is in ")[1].split(";")[0])
    assert "ZeroDivisionError: oh" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "2026-03-01"], "give both"),
        (["--to", "2026-03-01"], "give both"),
        (["--from", "yesterday", "--to", "2026-03-01"], "yesterday"),
        (["--from", "2026-03-02", "--to", "2026-03-01"], "start < until"),
        (["--from", "2026-03-01", "--to", "2026-03-02", "--until-caught-up"], "a backfill is one epoch"),
    ],
    ids=["no end", "no begin", "no time", "backward", "until caught up"],
)
def test_an_interval_that_cannot_be_meant_is_wrong_use(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(cli.app, ["run", "orders", *arguments], env={"COLUMNS": "200"})

    assert answer.exit_code == 2
    assert said in answer.output


@pytest.mark.usefixtures("no_stack")
def test_the_log_is_one_file_that_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-4: what a pipeline's own code says in a traceback stands in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    execution.spark_log.cache_clear()

    log = execution.spark_log()

    assert log.parent == tmp_path
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert execution.spark_log() == log
    execution.spark_log.cache_clear()
