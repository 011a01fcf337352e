"""What the product never asks of Spark: to remember anything."""

from __future__ import annotations

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
