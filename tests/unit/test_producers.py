"""What the examples' producers write is what their programs read."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from epochline.config.discovery import find
from epochline.declare.functions import load_function
from epochline_examples.producers import PRODUCERS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "program"), [("numbers", "restart_demo"), ("visits", "ip_count"), ("orders", "order_windows")]
)
def test_the_program_s_own_parse_takes_every_line(name: str, program: str) -> None:
    """E5b, E8, E11."""
    pipeline = find(program, ROOT / "dags")
    assert isinstance(pipeline.parse, str)
    lines = [line.encode() for line in itertools.islice(PRODUCERS[name](), 20)]

    parsed = load_function(pipeline.parse)(pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.binary())}))

    assert parsed.num_rows == 20
    errors = parsed.column("_error") if "_error" in parsed.schema.names else pa.nulls(20)
    assert errors.null_count == 20
    assert all(parsed.column(column).null_count == 0 for column in pipeline.record or {})


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_producer_ends_after_a_thousand_lines_unless_somebody_says_otherwise(name: str) -> None:
    """X16."""
    command = [sys.executable, "-m", "epochline_examples.producers", name]

    said = subprocess.run(command, cwd=ROOT / "include", capture_output=True, text=True, check=True).stdout

    assert len(said.splitlines()) == 1000
