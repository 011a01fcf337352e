"""SQL on a Spark server that stays: the examples' pipelines, whose jobs are its clients (E10, E11)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from epochline.config.discovery import find
from epochline.coordinator import seal
from epochline_examples.programs import PROGRAMS, Send
from tests.crash.conftest import NewLine
from tests.crash.spark_job import SERVER, job, log_of
from tests.processes.client import ROOT

FIELDS = ("parse", "record", "transform", "windows", "bad_records")
ROWS = {
    "order_totals": [("lisi", 3), ("zhangsan", 2), ("zhaoliu", 4)],
    # The program's last record is late for its third epoch. Here one epoch reads all, so that no record is late.
    "order_windows": [("1", 4)],
}


def sent(program: str) -> Sequence[str]:
    return [line for step in PROGRAMS[program].steps if isinstance(step, Send) for line in step.lines]


@pytest.mark.parametrize(("name", "program"), [("order_totals", "batch_sql"), ("order_windows", "streaming_sql")])
def test_one_text_is_a_batch_and_a_stream_on_a_spark_server(
    name: str, program: str, new_line: NewLine, spark_server: str, tmp_path: Path
) -> None:
    declared: Any = find(name, ROOT / "dags" / "examples")
    line = new_line(**{field: getattr(declared, field) for field in FIELDS}, sinks=declared.sinks, partitions=1)
    line.produce({0: sent(program)})
    folders = [str(ROOT / "include"), str(ROOT / "spark_jobs")]

    planned, ticket = line.to_begun("run-1")
    with job(line, ticket, tmp_path, SERVER, server=spark_server, PYTHONPATH=":".join(folders)) as running:
        assert running.wait(240) == 0, log_of(tmp_path)
    assert planned.epoch is not None
    seal(line.ledger, line.source, ticket, line.run_of("run-1"))
    line.commit(planned.epoch.epoch_id)

    assert line.query(f"SELECT user_name, total_count FROM {declared.targets[0].table} ORDER BY 1") == ROWS[name]
