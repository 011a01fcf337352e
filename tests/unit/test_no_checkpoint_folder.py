"""What the product never asks of Spark, which is to remember anything, nor of Kafka."""

from pathlib import Path

import pytest

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
    assert [str(path) for path in texts if word in path.read_text().lower()] in (
        [],
        [str(ROOT / "docs/requirements.md")],
    )
