"""Every named SQL statement is described and used, and nothing keeps a checkpoint beside the ledger."""

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


ROOT = Path(__file__).parents[2]
FOLDERS = ("include", "spark_jobs", "dags", "plugins")


@pytest.mark.parametrize(
    "word", ["checkpointLocation", "readStream", "writeStream", "setCheckpointDir", ".checkpoint("]
)
def test_spark_keeps_no_position_and_no_state_between_epochs(word: str) -> None:
    """B3: offsets and state are in the ledger's database; a job's folder may go as soon as the job has ended."""
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]

    assert len(sources) > 100
    assert [str(path) for path in sources if word in path.read_text()] == []


@pytest.mark.parametrize("word", ["zookeeper", "metadata.broker.list", "consumer.legacy"])
def test_nothing_names_what_kafka_no_longer_has(word: str) -> None:
    """X31: neither a program nor a page that a person copies from."""
    texts = [path for folder in (*FOLDERS, "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = [path for path in texts if path.suffix in (".py", ".md", ".toml", ".yaml", ".conf", ".sh")]

    assert len(texts) > 300
    naming = {str(path.relative_to(ROOT)) for path in texts if word in path.read_text().lower()}
    assert naming <= {"docs/requirements.md", "docs/versions.md"}  # what is asked for, and what was tried
