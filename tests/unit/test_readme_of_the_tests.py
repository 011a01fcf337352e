"""The README of the tests names every module, and every module says what it is for."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = dict(
    re.findall(r"^\| `([a-z_/]+/)` \| (.*) \|$", (TESTS / "README.md").read_text().partition("## Run")[0], re.M)
)
MODULES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("folder", sorted({module.parent for module in MODULES}), ids=str)
def test_the_readme_names_the_modules_of_a_folder(folder: Path) -> None:
    shared = {
        module.stem
        for module in MODULES
        if module.parent == folder and not module.name.startswith(("test_", "conftest."))
    }
    row = ROWS.get("tests/" if folder == Path() else f"{folder}/", "")

    assert set(re.findall(r"`(\w+)`", row)) == shared


def test_every_module_says_in_its_first_line_what_it_is_for() -> None:
    assert [str(module) for module in MODULES if not ast.get_docstring(ast.parse((TESTS / module).read_text()))] == []
