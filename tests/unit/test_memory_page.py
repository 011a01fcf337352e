"""docs/memory.md says what the code sets."""

import re
from pathlib import Path

from epochline import KafkaSource
from epochline.kafka.records import BYTES, RECORDS
from epochline.local.process import shipped_settings
from epochline.spark.session import DEFAULTS, MEMORY_SETTINGS, SHUFFLES

ROOT = Path(__file__).parents[2]
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
