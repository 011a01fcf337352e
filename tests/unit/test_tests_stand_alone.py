"""What tests share lies in a conftest or a plain module: a test module stands alone and may be changed alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
