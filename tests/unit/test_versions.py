"""One table of supported versions: what the package demands, what was run and what the page shows agree with it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from epochline.config.versions import RANGES, Range
from tests.matrix.__main__ import PAGE, read, table

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def demanded(name: str) -> SpecifierSet:
    """What pip demands of a package, or of Python."""
    if name == "Python":
        return SpecifierSet(PROJECT["requires-python"])
    package = {"Spark": "pyspark", "Airflow": "apache-airflow"}[name]
    extras = map(Requirement, [one for extra in PROJECT["optional-dependencies"].values() for one in extra])
    return next(one.specifier for one in extras if one.name == package)


@pytest.mark.parametrize("name", ["Python", "Spark", "Airflow"])
def test_pip_demands_the_range(name: str) -> None:
    supported = RANGES[name]
    bounds = {one.operator: one.version for one in demanded(name) if one.operator != "!="}

    major, minor = supported.newest.split(".")
    assert bounds == {">=": supported.oldest, "<": f"{major}.{int(minor) + 1}"}


def test_a_version_is_in_a_range_with_all_of_its_patches() -> None:
    supported = Range("2.8", "4.2")

    assert [supported.is_older(one) for one in ("2.7.9", "2.8", "2.8.0", "10.0")] == [True, False, False, False]
    assert [supported.is_newer(one) for one in ("4.2", "4.2.9", "4.3.0", "10.0")] == [False, False, True, True]
    assert Range("16", "18").is_newer("18.4") is False


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_each_range_have_a_line_which_says_so_where_they_were_not_run(name: str) -> None:
    lines = [line for line in read() if line.what == name]

    for end in (RANGES[name].oldest, RANGES[name].newest):
        of = [line for line in lines if re.match(rf"{re.escape(end)}(\.|$)", line.version)]
        assert of, f"no run of {name} {end}: run `make matrix`"
        assert {line.result.partition(":")[0] for line in of} <= {"works", "not run"}
    refused = [line.version for line in lines if line.result == "refused"]
    assert all(RANGES[name].is_older(version) for version in refused)


def test_the_page_shows_what_the_data_say() -> None:
    assert f"<!-- tests.matrix begins -->\n{table(read())}\n<!-- tests.matrix ends -->" in PAGE.read_text()
