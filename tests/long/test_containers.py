"""docker-compose.yaml, run: an epoch from Kafka to PostgreSQL through a Spark cluster, all of it in containers.

Needs a Docker engine with Compose, the ports 5432, 8080, 8081 and 9092 of the loopback address, and some 6 GiB.
Debian and Ubuntu: ``apt install docker.io docker-compose-v2``; elsewhere https://docs.docker.com/engine/install/.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNTED = (
    "SELECT count(*) AS rows, count(DISTINCT (_partition, _offset)) AS different,"
    " (SELECT count(*) FROM epochline.quarantine WHERE pipeline = 'access_log') AS quarantined FROM access_log"
)
FOLDERS = ("dags", "include", "plugins", "spark_jobs")
FILES = ("Dockerfile", "docker-compose.yaml", "pyproject.toml", "README.md", "requirements.txt", ".dockerignore")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the project with passwords and volumes of its own, its containers up and healthy."""
    ready = shutil.which("docker") and subprocess.run(["docker", "compose", "version"], check=False).returncode == 0
    assert ready, "this test needs Docker with Compose: apt install docker.io docker-compose-v2"
    engine = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    assert engine.returncode == 0, f"the Docker engine does not answer: {engine.stderr.strip()}"
    folder = tmp_path_factory.mktemp("compose") / "epochline-test"
    folder.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(["sh", "include/docker/make-env.sh"], cwd=folder, check=True)
    try:
        compose(folder, "up", "--build", "--detach", "--wait", "--wait-timeout", "900")
        yield folder
    finally:
        compose(folder, "down", "--volumes", "--timeout", "10")


def compose(folder: Path, *arguments: str) -> str:
    """What a command of Compose printed, in a project of this test's own."""
    done = subprocess.run(
        ["docker", "compose", "--project-name", "epochline-test", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_airflow(folder: Path, *command: str) -> str:
    return compose(folder, "exec", "-T", "airflow-scheduler", *command)


@pytest.mark.long
def test_an_epoch_in_containers_is_exact(checkout: Path) -> None:
    """G3: each line of the log is a row or in quarantine, once."""
    make = ("python", "-m", "epochline_examples.access_log.maker", "--lines", "1000", "--out", "/tmp/access.log")
    in_airflow(checkout, *make)
    in_airflow(checkout, "epochline", "feed", "/tmp/access.log", "--topic", "access_log")

    in_airflow(checkout, "epochline", "run", "access_log", "--until-caught-up")

    counted = json.loads(in_airflow(checkout, "epochline", "sql", "--json", COUNTED))
    assert counted["rows"] == counted["different"] > 900
    assert counted["rows"] + counted["quarantined"] == 1000
    in_airflow(checkout, "epochline", "audit", "access_log")  # ends with 1 where a row is missing, doubled or changed


@pytest.mark.long
def test_no_process_in_a_container_compiles_a_module(checkout: Path) -> None:
    """The image holds bytecode of Python, of the packages and of the library."""
    verbose = "import sys; sys.stderr = sys.stdout; import epochline.pipeline, airflow.models, pyspark.sql"
    said = in_airflow(checkout, "sh", "-c", f"python -v -c '{verbose}' 2>&1")

    compiled = [line for line in said.splitlines() if line.startswith("# code object from '/") and ".py'" in line]
    assert compiled == []
