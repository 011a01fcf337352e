"""A test module stands alone and may be changed alone; what tests share is named in their README."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def imported(source: str) -> Iterator[str]:
    """The parts of each name that a module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
        if isinstance(node, ast.Import | ast.ImportFrom):
            for one in node.names:
                yield from one.name.split(".")


def test_no_module_imports_from_a_test_module() -> None:
    modules = {path: path.read_text() for path in TESTS.rglob("*.py")}
    names = {path.stem for path in modules if path.stem.startswith("test_")}

    found = {str(path.relative_to(TESTS)): names.intersection(imported(source)) for path, source in modules.items()}

    assert {path: taken for path, taken in found.items() if taken} == {}


ROWS = dict(
    re.findall(r"^\| `([a-z0-9_/]+/)` \| (.*) \|$", (TESTS / "README.md").read_text().partition("## Run")[0], re.M)
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
