"""A writer that was stopped in the middle of COPY wakes after the next attempt began, sealed and committed."""

import subprocess
import sys
import time

import psutil
import pytest

from tests.checker import assert_exact, recover
from tests.crash.line import Line
from tests.processes.client import ROOT
from tests.waiting import stop_process

# Reads the first partition of the epoch and copies its rows; the line on its standard input holds it between two
# batches, where a Spark task waits for Kafka.
WRITER = """
import sys
from tests.crash.line import Line
from tests.job import spark_partition
from epochline.spark.attempt_plan import read_plan

dsn, bootstrap, name = sys.stdin.readline().split()
line = Line(dsn, bootstrap, name=name, partitions=0)
plan = read_plan(dsn, name, 1, 1)

def batches():
    for number, batch in enumerate(line.read(plan.ranges[0])):
        yield batch
        if number == 0:
            print("copied", flush=True)
            sys.stdin.readline()

try:
    with spark_partition(0):
        line.writer(plan.ticket).write(batches())
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.fault("F8")
def test_a_zombie_writer_that_wakes_after_the_commit_leaves_no_row(line: Line) -> None:
    """I1, I4, I5, INV-4: its staging is its own, its session is ended, and the refused write is recorded."""
    planned = line.to_planned("run-1")
    assert line.begin(1, "run-1") is not None
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        writer.stdin.write(f"{line.dsn} {line.bootstrap} {line.name}\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "copied\n"
        zombie = psutil.Process(writer.pid)
        stop_process(zombie.pid)

        since = time.monotonic()
        line.pre_commit(planned, "run-1")
        line.commit(1)
        recover(line, since=since)

        zombie.resume()
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "EpochFencedError\n"
    finally:
        writer.kill()
        writer.communicate(timeout=20)
    assert line.query("SELECT state, fenced_writes FROM epochline.attempts WHERE attempt = 1") == [("FENCED", 1)]
    assert_exact(line)
