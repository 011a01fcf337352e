"""The real Spark job killed at failpoints: its driver for good, its Python worker once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochline.coordinator import seal
from epochline.failpoints.named import KILLED, NAMED, RECORD
from epochline.local.jars import spark_jars
from epochline.protocol.staging import StagingTicket
from tests.crash.cases import NewCase
from tests.crash.checker import recover
from tests.crash.one_step import SharedTopic
from tests.crash.reliability import Recovery
from tests.crash.scenarios import ONE, pre_commit_and_commit
from tests.crash.steps import ROOT


def spark_job(line: SharedTopic, ticket: StagingTicket, folder: Path, record: Path, failpoint: str) -> int:
    """What spark-submit runs, in client mode, until it ends; its exit code."""
    credentials = folder / "credentials.json"
    credentials.touch(mode=0o600)
    kafka = {"bootstrap.servers": line.bootstrap}
    credentials.write_text(json.dumps({"postgres": {"dsn": line.dsn}, "kafka": kafka}))
    jars = ",".join(map(str, spark_jars()))
    environment = {
        **os.environ,
        "EPOCHLINE_CREDENTIALS": str(credentials),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2,3] --conf spark.ui.enabled=false --jars {jars} pyspark-shell",
        "PYTHONPATH": str(ROOT / "include"),
        NAMED: failpoint,
        RECORD: str(record),
    }
    program = [sys.executable, str(ROOT / "spark_jobs" / "pre_commit.py")]
    asked = ["--pipeline", line.name, "--epoch", str(ticket.epoch_id), "--attempt", str(ticket.attempt)]
    with (folder / "spark.log").open("wb") as log:
        return subprocess.run([*program, *asked], check=False, env=environment, stdout=log, stderr=log).returncode


@pytest.mark.fault("F2")
@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("job.stage", KILLED), ("manifest.begin", 1)],
    ids=["before it writes", "before the manifest"],
)
def test_a_driver_killed_at_a_failpoint_is_made_good_by_the_next_attempt(
    name: str, exit_code: int, new_case: NewCase, fired: Path, tmp_path: Path, recovery: Recovery
) -> None:
    """I1, I6: partial staging never commits; a driver that is dead writes no manifest and no end mark.

    The manifest is written by a Python process of the driver's, which dies alone; the driver ends with an error.
    """
    line = new_case()
    _, ticket = line.to_begun(ONE)

    assert spark_job(line, ticket, tmp_path, fired, f"{name}:exit") == exit_code

    recovery.last_fault()
    pre_commit_and_commit(line)
    recover(line)
    recovery.took()
    assert line.query("SELECT attempt FROM epochline.epochs WHERE pipeline = %s", line.name) == [(2,)]


@pytest.mark.fault("F3")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["write.copy", "write.commit", "write.committed"])
def test_a_worker_killed_at_a_failpoint_is_made_good_by_sparks_own_retry(
    name: str, new_case: NewCase, fired: Path, tmp_path: Path
) -> None:
    """I1, I4: the task runs again in the same attempt; what was committed already is not written twice."""
    line = new_case()
    _, ticket = line.to_begun(ONE)
    record = tmp_path / "fired"

    assert spark_job(line, ticket, tmp_path, record, f"{name}:exit:once") == 0

    assert record.read_text().split() == [name]
    assert seal(line.ledger, line.source, ticket, line.run_of(ONE)).read == len(line.produced)
    line.commit(1)
    recover(line)
