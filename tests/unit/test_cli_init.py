"""`epochline init`: a pipeline that is valid, and a test that passes until somebody breaks the parse."""

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from epochline.cli.init import columns_of
from epochline.config import discovery
from epochline.declare.columns import SUPPORTED
from tests.commands import Call, caller, python

EVERY_TYPE = ", ".join(
    f"c{at} {kind}" for at, kind in enumerate((*SUPPORTED, "numeric(12,2)", "numeric(2,2)", "varchar(2)"))
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dags").mkdir()
    monkeypatch.setenv("EPOCHLINE_PROJECT", str(tmp_path))
    monkeypatch.setenv("EPOCHLINE_DAGS", str(tmp_path / "dags"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def init(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys, "init")


def run_tests(project: Path) -> str:
    options = ("-q", "-rA", "-p", "no:cacheprovider", "--import-mode=importlib")
    library = {"PYTHONPATH": str(Path(discovery.__file__).parents[2])}
    done = python("-m", "pytest", *options, "tests", cwd=project, check=False, variables=library)
    return done.stdout + done.stderr


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_generated_tests_pass_and_each_fails_once_its_parse_is_broken(init: Call, project: Path) -> None:
    """Every parser, and every column type."""
    for parser in ("json", "csv", "function"):
        assert init(f"{parser}-one", "--parser", parser, "--columns", EVERY_TYPE)[0] == 0
    assert init("text-one", "--parser", "text")[0] == 0

    assert discovery.find("json-one").targets[0].table == "json_one"
    passed = run_tests(project)
    replace_in(project / "dags" / "json_one.py", '"c0": "bigint"', '"d0": "bigint"')
    replace_in(project / "dags" / "csv_one.py", '",".join', '";".join')
    replace_in(project / "dags" / "text_one.py", 'column="value"', 'column="line"')
    replace_in(project / "dags" / "text_one.py", '"value": "text"', '"line": "text"')
    replace_in(project / "spark_jobs" / "pipelines" / "function_one.py", 'split(";")', 'split(",")')
    failed = run_tests(project)

    assert "8 passed" in passed, passed
    for one in ("json", "csv", "text", "function"):
        assert f"FAILED tests/test_{one}_one.py::test_the_sample_record_becomes_a_row" in failed


def test_the_declaration_is_valid_and_says_what_was_asked(init: Call, project: Path) -> None:
    code, out, _ = init(
        "totals", "--topic", "orders", "--columns", "customer text, amount numeric(12,2)", "--table", "shop.totals",
        "--mode", "add", "--key", "customer", "--schedule", "PT90S",
    )  # fmt: skip

    declared = discovery.find("totals")
    (sink,) = declared.targets
    assert code == 0
    assert declared.source.topics == ("orders",)
    assert declared.schedule == timedelta(seconds=90)
    assert (sink.table, sink.mode, sink.key, sink.measures) == ("shop.totals", "add", ("customer",), ("amount",))
    assert out.split("next:\n")[1].split("\n")[:5] == [
        "  pytest tests/test_totals.py",
        "  epochline validate totals",
        "  epochline migrate",
        "  epochline feed tests/totals_sample.jsonl --topic orders",
        "  epochline preview totals",
    ]


@pytest.mark.parametrize("columns", ["id bigint", EVERY_TYPE], ids=["one column", "many columns"])
def test_the_files_are_formatted_as_the_projects_own(init: Call, project: Path, columns: str) -> None:
    for parser in ("json", "csv", "function"):
        init(f"{parser}-one", "--parser", parser, "--columns", columns, "--schedule", "PT1M")
    config = ("--config", Path(__file__).parents[2] / "pyproject.toml", project)

    python("-m", "ruff", "format", "--check", *config)
    python("-m", "ruff", "check", "--no-cache", *config)


def test_nothing_is_overwritten_and_no_name_is_taken_twice(init: Call, project: Path) -> None:
    assert init("orders", "--columns", "id bigint")[0] == 0
    before = {file: file.read_text() for file in project.rglob("*.*") if file.is_file()}

    again = init("orders", "--columns", "id text")
    (project / "dags" / "orders.py").rename(project / "dags" / "renamed.py")
    for file in (project / "tests").iterdir():
        file.unlink()
    same_name = init("orders", "--columns", "id text")

    assert again[0] == same_name[0] == 1
    assert "dags/orders.py, tests/test_orders.py, tests/orders_sample.jsonl exists already" in again[2]
    assert "renamed.py:20 declares a pipeline 'orders' already; nothing was written" in same_name[2]
    assert (project / "dags" / "renamed.py").read_text() == before[project / "dags" / "orders.py"]
    assert list((project / "tests").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders",), "name the columns, as in: id bigint"),
        (("orders", "--columns", "id cash"), "unsupported type 'cash'"),
        (("orders", "--columns", "id"), "'id' has no type"),
        (("orders", "--columns", "_offset bigint"), "is a name that epochline uses for a column itself"),
        (("or/ders", "--topic", "t", "--columns", "id bigint"), "'or/ders': up to 100 letters"),
        (("orders", "--columns", "id bigint", "--mode", "upsert"), "key: mode 'upsert' needs it"),
        (("orders", "--columns", "id bigint", "--key", "di"), "repeats: a key in mode 'append' needs it"),
        (("orders", "--columns", "id bigint, b text", "--mode", "add", "--key", "id"), "only integer and numeric"),
        (("orders", "--columns", "id bigint", "--schedule", "-PT1M"), "longer than zero"),
        (("orders", "--columns", "a text, b text", "--parser", "text"), "one column of type text"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_wrong_answer_is_refused_as_its_declaration_would_be(
    init: Call, project: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = init(*arguments)

    assert (code, out) == (2, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert [file for file in project.rglob("*") if file.is_file()] == []


def _type(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes standard input a terminal at which somebody types."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield partial(_type, ours)
    os.close(ours)


def test_at_a_terminal_the_missing_answers_are_asked_for(
    init: Call, project: Path, answer: Callable[[str], None]
) -> None:
    answer("shop-orders\nxml\njson\nid bigint, amount numeric(12,2)\n\nupsert\nid\nPT5M\n")

    code, _, err = init("orders")

    declared = discovery.find("orders")
    assert code == 0
    assert "Topic [orders]:" in err
    assert "'xml' is not one of json, csv, text, function" in err
    assert declared.source.topics == ("shop-orders",)
    assert declared.parsed_columns == {"id": "bigint", "amount": "numeric(12,2)"}
    assert (declared.targets[0].table, declared.targets[0].key) == ("orders", ("id",))
    assert declared.schedule == timedelta(minutes=5)


def test_columns_are_read_as_sql_writes_them() -> None:
    assert columns_of("id bigint,  at timestamp with time zone, amount numeric(12, 2)") == {
        "id": "bigint", "at": "timestamp with time zone", "amount": "numeric(12, 2)"
    }  # fmt: skip
