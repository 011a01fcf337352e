"""A thousand epochs on one Spark server: it holds no more memory at the end than after its first hundred."""

import os
import statistics
from pathlib import Path

import pytest

from bench.processes import held
from epochline.coordinator import seal
from epochline.local.stack import Stack
from tests.checker import assert_exact
from tests.crash.line import Line
from tests.crash.spark_job import SERVER, job, log_of

EPOCHS = int(os.environ.get("EPOCHLINE_SERVER_EPOCHS", "1000"))
MOST_GROWTH = 1.3


@pytest.mark.long
def test_a_thousand_epochs_leave_the_server_no_larger(
    stack: Stack, spark_server: str, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    lines = [Line(postgres_dsn, kafka_bootstrap) for _ in range(2)]
    sizes: list[int] = []
    for number in range(EPOCHS):
        line = lines[number % 2]
        line.produce({0: [f"{number} {text}" for text in range(100)], 1: [f"{number} in the other partition"]})
        planned, ticket = line.to_begun(f"run-{number}")
        with job(line, ticket, tmp_path, SERVER, server=spark_server) as running:
            assert running.wait(240) == 0, log_of(tmp_path)
        assert planned.epoch is not None
        seal(line.ledger, line.source, ticket, line.run_of(f"run-{number}"))
        line.commit(planned.epoch.epoch_id)
        assert stack.spark.pid is not None
        sizes.append(held(stack.spark.pid))
        if number % 50 == 0:
            print(f"epoch {number}: {sizes[-1] / 2**20:.0f} MiB", flush=True)

    tenth = max(1, EPOCHS // 10)
    early, late = (statistics.median(some) for some in (sizes[tenth : 2 * tenth], sizes[-tenth:]))
    assert late < MOST_GROWTH * early, f"{early / 2**20:.0f} MiB became {late / 2**20:.0f} MiB"
    for line in lines:
        assert_exact(line)
