"""Every named SQL statement is described, and some code runs it."""

import re
from pathlib import Path

import pytest

import epochline
from epochline.postgres.queries import named

PACKAGE = Path(epochline.__file__).parent
FILES = sorted((PACKAGE / "postgres" / "queries").glob("*.sql"))
NAMES = [name for file in FILES for name in re.findall(r"^-- name: *(.*)$", file.read_text(), re.MULTILINE)]
SOURCES = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))


def test_every_head_of_a_statement_is_read_and_no_name_is_given_twice() -> None:
    assert len(NAMES) > 100
    assert sorted(NAMES) == sorted(named.statements())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_begins_with_its_subject_and_describes_each_statement(file: Path) -> None:
    subject, *statements = re.split(r"^-- name: ", file.read_text(), flags=re.MULTILINE)

    assert re.fullmatch(r"(-- .+\n)+\n", subject)
    assert [one.split("\n")[0] for one in statements if not re.match(r"\w+\n-- \S.{6,}\n", one)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_is_used_and_has_placeholders_of_one_style(name: str) -> None:
    """``%(name)s``, with every other percent sign doubled, and no ``:name``."""
    assert f'"{name}"' in SOURCES
    bare = re.sub(r"%\(\w+\)s|%%", "", named.statement(name))

    assert "%" not in bare
    assert not re.search(r"(?<![:\w]):[a-z]", bare)
    assert not bare.startswith("--")
