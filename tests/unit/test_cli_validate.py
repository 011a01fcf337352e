"""`epochline validate` reports each problem with file and line, without any server."""

import json
import sys
from pathlib import Path

import pytest

from tests.commands import Call
from tests.declaring import DAG, declare


def test_valid_declarations_are_named(called: Call, tmp_path: Path) -> None:
    declare(tmp_path, "one", "rows")

    code, out, _ = called("validate")

    assert (code, out.splitlines()[0]) == (0, "valid: one")


def test_the_last_lines_say_what_was_checked_and_what_was_not(called: Call, tmp_path: Path) -> None:
    declare(tmp_path, "one", "rows")
    declare(tmp_path, "two", "others")

    code, out, _ = called("validate", "two", "one", "three")

    problem, valid, checked, not_compared = out.splitlines()
    assert code == 1
    assert problem == "no valid pipeline 'three' is declared; valid ones: one, two"
    assert valid == "valid: two, one"
    assert checked == "checked: declarations, their functions, and tables that two pipelines name"
    assert not_compared.startswith(
        "not compared: the tables of two, one: connection 'epochline_postgres' is not known here. "
    )


def test_an_invalid_declaration_is_reported_with_file_line_and_reference(called: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(DAG.format(name="bad", table="pg_x.rows"))

    code, out, _ = called("validate")

    assert code == 1
    assert out.startswith(f"{tmp_path / 'bad.py'}:4: ")
    assert out.strip().endswith("docs/reference.md#postgrestable")


def test_a_broken_declaration_of_another_file_is_a_warning_for_a_valid_one(called: Call, tmp_path: Path) -> None:
    declare(tmp_path, "one", "rows")
    (tmp_path / "bad.py").write_text(DAG.format(name="bad", table="pg_x.rows"))

    code, out, err = called("validate", "one")

    assert (code, out.splitlines()[0]) == (0, "valid: one")
    assert err.startswith(f"broken declaration: {tmp_path / 'bad.py'}:4: ")


def test_a_shared_table_is_reported_as_json(called: Call, tmp_path: Path) -> None:
    declare(tmp_path, "one", "rows")
    declare(tmp_path, "two", "rows")

    code, out, _ = called("validate", "two", "--json")

    (problem,) = json.loads(out)["problems"]
    assert code == 1
    assert (problem["file"], problem["line"]) == (str(tmp_path / "two.py"), 3)
    assert "both name the table rows" in problem["problem"]


def test_a_name_that_two_files_declare_is_reported(called: Call, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(DAG.format(name="one", table="a"))
    (tmp_path / "b.py").write_text(DAG.format(name="one", table="b"))

    code, out, _ = called("validate")

    assert code == 1
    assert "declared twice" in out


FAILS = "Every attempt would fail of it"


@pytest.mark.parametrize(
    ("before", "body", "said"),
    [
        ("", "return batch.select([])", [FAILS, "value"]),
        ("", "return batch.slice(1) if batch.num_rows else batch", [FAILS, "row"]),
        ("", "raise ValueError('no such record')", []),
        ("", "return batch.select(['value'])", []),
        ("import no_such_package\n", "...", [":parse cannot be imported (ModuleNotFoundError"]),
    ],
    ids=["no column", "a row too few", "a record that it does not know", "right", "a module that fails"],
)
def test_a_parse_that_breaks_its_contract_is_found_before_an_epoch_fails_of_it(
    called: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, body: str, said: list[str]
) -> None:
    name = f"functions_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"{before}def parse(batch):\n    {body}\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    dag = DAG.format(name="one", table="rows")
    (tmp_path / "one.py").write_text(dag.replace("parse=Text()", f'parse="{name}:parse", record={{"value": "bytea"}}'))

    code, out, _ = called("validate", "one")

    assert (code, out.splitlines()[0]) == (0, "valid: one") if not said else code == 1
    assert [one for one in said if one not in out] == []


def test_an_unknown_name_is_a_problem(called: Call) -> None:
    code, out, _ = called("validate", "nothing")

    assert code == 1
    assert "no valid pipeline 'nothing'" in out
