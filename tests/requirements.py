"""Which test fails if a requirement breaks: ``python -m tests.requirements``, or ``make requirements``.

A test cites the ids of what it shows: at the start of a line or in brackets, in its docstring or in that of its class
or module, or by its mark ``fault``. docs/data/requirements.tsv, one line per requirement, is made of that.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "requirements.md"
DATA = PAGE.parent / "data" / "requirements.tsv"
LONG_SUITE = "(long suite)"
"""What the sentence of a requirement says that CI does not check."""

SHOWN = 2
"""So many tests of an id are named."""

_ID = r"[A-Z]{1,3}-?\d+[a-z]?"
_LIST = rf"{_ID}(?:(?:[,;] (?:and )?| to | and |\u2013){_ID})*"
_LEADING = re.compile(rf"^\s*({_LIST})[:.]", re.MULTILINE)
_BRACKETED = re.compile(rf"\(({_LIST})\)")
_RANGE = re.compile(r"([A-Z]{1,3}-?)(\d+)(?: to |\u2013)\1(\d+)")
_DEFINED = re.compile(rf"^- (\*\*{_ID}\*\*(?:, \*\*{_ID}\*\*)*) (.*)$", re.MULTILINE)
_HEADER = "id\tfails if it breaks\tfurther tests\tcommand"
_COMMANDS = {"default": "make test", "slow": "make test-all", "long": "make test-long"}
"""What runs the tests of a tier."""


@dataclass(frozen=True)
class CitingTest:
    """A test function of this checkout."""

    path: str
    name: str
    cites: Mapping[str, int]
    """The ids, and how closely it cites each: 0 at the test, 1 at its class, 2 at its module."""
    tier: str
    """The first tier that runs it: ``default``, ``slow`` or ``long``."""

    def __str__(self) -> str:
        return f"{self.path}::{self.name}"


def expanded(text: str) -> frozenset[str]:
    """The ids in a list such as ``G1, S1 to S7``."""
    found = set(re.findall(_ID, text))
    for letters, first, last in _RANGE.findall(text):
        found |= {f"{letters}{number}" for number in range(int(first), int(last) + 1)}
    return frozenset(found)


def _cited(docstring: str | None, distance: int) -> dict[str, int]:
    found = [*_LEADING.findall(docstring or ""), *_BRACKETED.findall(docstring or "")]
    return {id_: distance for ids in found for id_ in expanded(ids)}


def _marks(decorators: Sequence[ast.expr]) -> Iterator[tuple[str, Sequence[ast.expr]]]:
    for one in decorators:
        called = one.func if isinstance(one, ast.Call) else one
        if ast.unparse(called).startswith("pytest.mark."):
            yield ast.unparse(called).removeprefix("pytest.mark."), one.args if isinstance(one, ast.Call) else ()


def citing_tests(text: str, path: str) -> Iterator[CitingTest]:
    """The tests of a module, with what they cite and the tier that first runs them."""
    module = ast.parse(text)
    by_module = _cited(ast.get_docstring(module), 2)
    of_module = [
        mark
        for one in module.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
        for mark in (one.value.elts if isinstance(one.value, ast.List | ast.Tuple) else [one.value])
    ]

    def inside(body: Sequence[ast.stmt], cites: Mapping[str, int], marks: Sequence[ast.expr]) -> Iterator[CitingTest]:
        for one in body:
            if isinstance(one, ast.ClassDef):
                outer = [*marks, *one.decorator_list]
                yield from inside(one.body, {**cites, **_cited(ast.get_docstring(one), 1)}, outer)
            elif isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                found = list(_marks([*marks, *one.decorator_list]))
                names = {name for name, _ in found}
                marked = [ast.unparse(fault).strip("'") for name, args in found if name == "fault" for fault in args]
                tier = next((tier for tier in ("long", "slow") if tier in names), "default")
                own = {**dict.fromkeys(marked, 0), **_cited(ast.get_docstring(one), 0)}
                yield CitingTest(path, one.name, {**cites, **own}, tier)

    yield from inside(module.body, by_module, of_module)


def all_tests() -> list[CitingTest]:
    """The tests of this checkout."""
    return [
        test
        for file in sorted(TESTS.rglob("test_*.py"))
        for test in citing_tests(file.read_text(), file.relative_to(TESTS.parent).as_posix())
    ]


def defined(page: str) -> dict[str, str]:
    """The sentence of each requirement, in the order of the page. Several may share one."""
    return {id_: sentence for ids, sentence in _DEFINED.findall(page) for id_ in re.findall(_ID, ids)}


def proofs(tests: Sequence[CitingTest]) -> Mapping[str, Sequence[CitingTest]]:
    """The tests of each id: those of the default tier first, and of those the ones that cite it most closely."""
    found: dict[str, list[CitingTest]] = defaultdict(list)
    for test in tests:
        for id_ in test.cites:
            found[id_].append(test)
    tiers = ("default", "slow", "long")
    return {
        id_: sorted(some, key=lambda test: (tiers.index(test.tier), test.cites[id_], len(test.cites), str(test)))
        for id_, some in found.items()
    }


def problems(page: str, data: str, tests: Sequence[CitingTest]) -> list[str]:
    """What is wrong with page and data: an id without a test that CI runs, or a line that is not true."""
    said, by_id = [], proofs(tests)
    requirements = defined(page)
    known = {str(test): test for test in tests}
    rows = {row[0]: row[1].split() for row in (line.split("\t") for line in data.splitlines()[1:])}
    for id_, sentence in requirements.items():
        some = by_id.get(id_, ())
        if not some:
            said.append(f"{id_}: no test cites it")
        elif all(test.tier != "default" for test in some) and LONG_SUITE not in sentence:
            said.append(f"{id_}: CI runs none of its tests, and its sentence does not say {LONG_SUITE}")
        named = rows.get(id_, [])
        if not named:
            said.append(f"{id_}: the data name no test: run `make requirements`")
        for name in named:
            test = known.get(name)
            if test is None or id_ not in test.cites:
                said.append(f"{id_}: {name} does not exist or does not cite it: run `make requirements`")
    return said + [f"{id_}: the data name it, and no sentence defines it" for id_ in rows if id_ not in requirements]


def written(page: str, tests: Sequence[CitingTest]) -> str:
    """The data: for each requirement of the page its closest tests, how many more there are, and what runs them."""
    by_id = proofs(tests)
    lines = [_HEADER]
    for id_ in defined(page):
        some = by_id.get(id_, ())
        best = [test for test in some if test.tier == some[0].tier][:SHOWN]
        command = _COMMANDS[some[0].tier] if some else ""
        lines.append("\t".join((id_, " ".join(map(str, best)), str(len(some) - len(best)), command)))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the data, and name what no test shows."""
    tests, page = all_tests(), PAGE.read_text()
    DATA.write_text(written(page, tests))
    if found := problems(page, DATA.read_text(), tests):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
