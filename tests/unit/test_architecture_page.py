"""docs/architecture.md has a line for every part of the library, in the layers that import-linter checks."""

import configparser
import re
from itertools import groupby
from pathlib import Path

PROJECT = Path(__file__).parents[2]
LINE = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)


def test_the_page_has_the_layers_of_the_import_contract() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(PROJECT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"].split("\n")
    checked = [set(re.findall(r"\w+", layer)) for layer in layers if layer]

    lines = LINE.findall((PROJECT / "docs" / "architecture.md").read_text())

    assert [{part for _, part in layer} for _, layer in groupby(lines, key=lambda line: line[0])] == checked
    assert [int(number) for number, _ in groupby(lines, key=lambda line: line[0])] == list(range(len(checked), 0, -1))
