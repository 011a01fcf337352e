"""Pages agree with the code: names, layers, memory settings, times, the reference, and cited requirements."""

import configparser
import re
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest

import epochline
from bench.times import CALLS, MAKE, table
from epochline import KafkaSource
from epochline.declare.version import VERSION
from epochline.errors import DeclarationError
from epochline.kafka.records import BYTES, RECORDS
from epochline.local.part import shipped_settings
from epochline.spark.session import DEFAULTS, MEMORY_SETTINGS, SHUFFLES
from tests import reference
from tests.crash.matrix import FAULTS
from tests.requirements import all_tests, defined

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("", "docs", "docs/adr", "include/epochline_examples", "plugins", "tests")
    for path in (ROOT / folder).glob("*.md")
)
NAMED = re.compile(r"`((?:bench|dags|docs|include|plugins|spark_jobs|tests)/[\w./-]*)`(?! \(new\))")
MADE = re.compile(r"^`([\w./-]+)`:$", re.MULTILINE)
"""A file that the reader of a page writes."""

MODULE = re.compile(r"\b(epochline(?:_examples)?(?:\.[a-z_]+){2,}(?:\.[A-Z]\w+)?)\b")


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    parent, _, name = dotted.rpartition(".")
    try:
        return hasattr(import_module(parent), name) or import_module(dotted) is not None
    except ImportError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    """`make site` finds links that are dead."""
    text = page.read_text()
    broken = [path for path in set(NAMED.findall(text)) - set(MADE.findall(text)) if not (ROOT / path).exists()]
    broken += [name for name in set(MODULE.findall(text)) if not exists(name)]

    assert broken == []


def test_images_and_archives_have_the_version_of_the_package() -> None:
    files = [*PAGES, ROOT / "docker-compose.yaml"]
    told = [said for path in files for said in re.findall(r"epochline(?:-spark)?[:-](\d+\.\d+\.\d+)", path.read_text())]

    assert {*told} == {VERSION}


def test_every_dag_file_that_a_reader_copies_is_one_that_airflow_reads_by_default() -> None:
    """Airflow's safe mode skips a file without the word airflow, and says nothing."""
    files = {str(path): path.read_text() for path in (ROOT / "dags").rglob("*.py")}
    for page in PAGES:
        blocks = enumerate(re.findall(r"^```python.*?^```", page.read_text(), re.MULTILINE | re.DOTALL))
        files |= {f"{page}, example {number}": block for number, block in blocks}

    makes_dags = {name for name, text in files.items() if re.search(r"(epoch_dag|epoch_tasks|operation_dags)\(", text)}

    assert len(makes_dags) > 20
    assert {name for name in makes_dags if "airflow" not in files[name].lower()} == set()


def test_the_requirements_that_tests_cite_are_defined() -> None:
    """A test's docstring begins with the ids of what it shows."""
    known = {*defined((ROOT / "docs" / "requirements.md").read_text()), *FAULTS, "UTF-8"}

    cited = {id_: test.path for test in all_tests() for id_ in test.cites}

    assert len(cited) > 100
    assert {id_: path for id_, path in cited.items() if id_ not in known} == {}


PAGE = (ROOT / "docs" / "memory.md").read_text()
VALUES = dict(re.findall(r"^\| `([\w.]+)`[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE))


def test_the_page_explains_the_settings_that_a_job_logs() -> None:
    """B2."""
    assert {name for name in VALUES if name.startswith("spark.")} == set(MEMORY_SETTINGS)


def test_the_values_of_the_page_are_those_that_the_code_sets() -> None:
    """B2."""
    for name, value in DEFAULTS.items():
        assert VALUES[name].startswith(f"`{value}`")
    assert VALUES[SHUFFLES] == "twice the cores"
    assert VALUES["records_per_epoch"] == f"{KafkaSource(topics='t').records_per_epoch:,}"
    assert f"at most {RECORDS:,} records or {BYTES // 2**20} MiB" in PAGE
    heap = shipped_settings("spark")["spark.driver.memory"]
    assert VALUES["spark.driver.memory"].startswith(f"`{heap}`")
    composed = (ROOT / "include" / "docker" / "spark-connect.conf").read_text()
    assert f"\nspark.driver.memory {heap}\n" in composed


LINE = re.compile(r"^\| (\d+) \| `(\w+)` \|", re.MULTILINE)


def test_the_page_has_the_layers_of_the_import_contract() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"].split("\n")
    checked = [set(re.findall(r"\w+", layer)) for layer in layers if layer]

    lines = LINE.findall((ROOT / "docs" / "architecture.md").read_text())

    assert [{part for _, part in layer} for _, layer in groupby(lines, key=lambda line: line[0])] == checked
    assert [int(number) for number, _ in groupby(lines, key=lambda line: line[0])] == list(range(len(checked), 0, -1))


ROW = r"^\| `([^`]+)` \| .* \| (?:\d+\.\d\d s|\d+ min \d+ s) \| \d{4}-\d\d-\d\d, `[0-9a-f]{7,}` \|$"


def test_every_target_whose_time_is_taken_is_one_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert set(MAKE) <= set(targets)


def test_the_page_has_the_time_of_every_command_whose_time_is_taken() -> None:
    rows = re.findall(ROW, (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

    assert rows == [*(f"make {target}" for target in MAKE), *(f"epochline {call}" for call in CALLS)]


def test_a_command_that_was_not_run_keeps_its_row() -> None:
    former = (
        "| `make demo` | x | 1 min 5 s | 2026-01-01, `abcdef0` |\n| `make test` | y | 9.00 s | 2026-01-01, `abcdef0` |"
    )

    written = table({"make test": (83.0, "z")}, former)

    assert former.splitlines()[0] in written.splitlines()
    assert re.findall(ROW, written, re.MULTILINE) == ["make demo", "make test"]
    assert "| `make test` | z | 1 min 23 s |" in written


def test_the_page_is_what_the_code_generates() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make reference`"


@pytest.mark.parametrize("name", reference.EXAMPLES)
def test_an_example_is_a_valid_declaration(name: str) -> None:
    made = reference.construct(reference.EXAMPLES[name])

    made = made if isinstance(made, list) else [made]
    assert all(type(one).__name__ == name for one in made)


@pytest.mark.parametrize("name", reference.EXAMPLES)
def test_every_field_has_a_meaning(name: str) -> None:
    kind = getattr(epochline, name)

    assert [field for field in reference.fields(kind) if field not in reference.documented(kind)] == []


def test_every_public_declaration_is_on_the_page() -> None:
    assert {*epochline.__all__} - {"epoch_dag", "epoch_schedule", "epoch_tasks"} == {*reference.EXAMPLES}


def test_the_error_of_a_declaration_ends_with_its_reference() -> None:
    with pytest.raises(DeclarationError, match=r"docs/reference\.md#kafkasource$"):
        KafkaSource()
