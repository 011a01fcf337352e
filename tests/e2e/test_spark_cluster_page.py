"""The commands of docs/spark-cluster.md: the project's own DAG, unchanged, on a cluster of a master and two workers."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epochline.local.stack import Stack
from tests.ports import choose_ports

ROOT = Path(__file__).parents[2]
STEPS = re.compile(r"^## A cluster on this machine\n.*?^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARTS = {"spark", "spark-master", "spark-worker-1", "spark-worker-2"}


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack of this test's own, in a folder that the account of PostgreSQL can enter."""
    folder = Path(tempfile.mkdtemp(prefix="ep-", dir="/tmp"))
    folder.chmod(0o755)
    stack = Stack(folder / "home")
    choose_ports(stack.home)
    yield stack
    stack.down(wipe=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_the_projects_dag_runs_on_a_cluster_as_the_page_says(stack: Stack, tmp_path: Path) -> None:
    """G3: each line of the log is a row or in quarantine; `down` leaves no process of the cluster."""
    found = STEPS.search((ROOT / "docs" / "spark-cluster.md").read_text())
    assert found is not None
    *steps, last = found[1].splitlines()
    assert last == "epochline down"

    said = shell(stack, tmp_path, "\n".join(steps))
    status = json.loads(shell(stack, tmp_path, "epochline status --json"))
    again = shell(stack, tmp_path, "epochline up spark && epochline trigger access_log")
    applications = sorted(stack.spark.cluster.folder.glob("spark-worker-*/app-*"))
    family = [psutil.Process(pid) for pid in status["spark"]["pids"].values()]
    family += [child for one in family for child in one.children(recursive=True)]
    counted = json.loads(shell(stack, tmp_path, f'epochline sql --json "{COUNTED}"'))
    shell(stack, tmp_path, last)

    assert "epoch 1 of access_log is committed: 1,000 records read" in said
    assert "1,000 records read again: no difference" in said
    assert status["spark"]["master"] == f"spark://127.0.0.1:{stack.spark.cluster.port}"
    assert set(status["spark"]["pids"]) == PARTS
    assert status["healthy"]
    assert "nothing to read" in again
    assert len(applications) == 2, "an executor of the server on each worker"
    assert counted["rows"] == counted["different"] > 900
    assert counted["rows"] + counted["quarantined"] == 1000
    assert [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert not stack.spark.cluster.started


COUNTED = (
    "SELECT count(*) AS rows, count(DISTINCT (_partition, _offset)) AS different,"
    " (SELECT count(*) FROM epochline.quarantine WHERE pipeline = 'access_log') AS quarantined FROM access_log"
)


def shell(stack: Stack, folder: Path, script: str) -> str:
    """What a script printed that is typed in a checkout with its environment."""
    environment = {
        **os.environ,
        "EPOCHLINE_HOME": str(stack.home.root),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "include"),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
