"""A source of a user's own at a terminal: `epochline run` with its own Spark, killed, run again, audited. No Kafka."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands import COMMAND, environment_of, in_processes
from tests.databases import as_connection, query
from tests.waiting import wait_until

DECLARED = """
from epochline import CustomSource, Json, Pipeline, PostgresTable, epoch_dag

columns = {"id": "bigint", "said": "text"}
dag = epoch_dag(Pipeline(
    name="shop", parse=Json(columns=columns), sinks=PostgresTable(table="copied", columns=columns),
    source=CustomSource(
        source="epochline.sources.growing_table:GrowingTable", connection="shop", label="events", positions="sparse",
        options={"table": "events", "key": "id"},
    ),
    spark_connection="spark_of_shop",
))
"""


@pytest.mark.slow
def test_a_run_that_is_killed_before_it_remembers_what_it_emitted_reads_each_row_once(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """X15, E8, N2: kill -9 of the whole run, after its rows are in staging and before the ledger has its end mark."""
    (tmp_path / "shop.py").write_text(DECLARED)
    query(
        postgres_dsn,
        "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, said text);"
        " INSERT INTO events (said) SELECT 'row ' || n FROM generate_series(1, 50) n",
    )
    connections = {
        "AIRFLOW_CONN_SHOP": as_connection(postgres_dsn),
        "AIRFLOW_CONN_SPARK_OF_SHOP": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    terminal = in_processes(tmp_path, postgres=postgres_dsn, kafka="127.0.0.1:1", **connections)
    terminal("migrate")

    passed = tmp_path / "passed"
    stopped = environment_of(
        tmp_path, postgres=postgres_dsn, kafka="127.0.0.1:1", **connections,
        EPOCHLINE_FAILPOINT="end.commit:stop", EPOCHLINE_FAILPOINT_RECORD=str(passed),
    )  # fmt: skip
    with subprocess.Popen([*COMMAND, "run", "shop"], env=stopped, stdout=subprocess.DEVNULL) as killed:
        wait_until(passed.exists, 120)
        os.kill(killed.pid, signal.SIGKILL)
    query(postgres_dsn, "INSERT INTO events (said) VALUES ('later')")
    # Nobody holds the dead run's epoch any more.
    query(postgres_dsn, "UPDATE epochline.epoch SET lease_until = now() WHERE pipeline = 'shop'")

    (committed,) = json.loads(terminal("run", "shop", "--json"))
    audited = terminal("audit", "shop")

    assert committed["records_read"] == 51
    rows = query(postgres_dsn, "SELECT id, said FROM copied ORDER BY id")
    assert rows == query(postgres_dsn, "SELECT id, said FROM events ORDER BY id")
    assert "shop: 1 epoch, 51 records read again: no difference" in audited
