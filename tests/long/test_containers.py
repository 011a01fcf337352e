"""docker-compose.yaml, run: an epoch from Kafka to PostgreSQL through a Spark cluster, all of it in containers.

Needs a Docker engine with Compose, the ports 5432, 8080, 8081 and 9092 of the loopback address, and some 6 GiB.
Ubuntu: ``apt install docker.io docker-compose-v2``; elsewhere https://docs.docker.com/engine/install/. Where no image can
be pulled, the test builds stand-ins: as root on Debian, with ``apt install docker.io docker-compose debootstrap``.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.long.stand_ins.images import BASE, make_stand_ins, run
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
COUNTED = (
    "SELECT count(*) AS rows, count(DISTINCT (_partition, _offset)) AS different,"
    " (SELECT count(*) FROM epochline.quarantine WHERE pipeline = 'access_log') AS quarantined FROM access_log"
)
FOLDERS = ("dags", "include", "plugins", "spark_jobs")
FILES = ("Dockerfile", "docker-compose.yaml", "pyproject.toml", "README.md", "requirements.txt", ".dockerignore")


SERVICES = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
PROJECT = "epochline-test"
PATIENCE_SECONDS = 1800


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the project with passwords and volumes of its own, its containers up and healthy."""
    engine = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    assert engine.returncode == 0, f"the Docker engine does not answer: {engine.stderr.strip()}"
    folder = tmp_path_factory.mktemp("compose") / PROJECT
    folder.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    # The older program, which Debian has, knows all of the file but its name.
    file = folder / "docker-compose.yaml"
    file.write_text(file.read_text().replace("name: epochline\n", "", 1))
    run("sh", str(folder / "include" / "docker" / "make-env.sh"), str(folder / ".env"))
    arguments = []
    if subprocess.run(["docker", "pull", SERVICES["postgres"]["image"]], capture_output=True, check=False).returncode:
        make_stand_ins(kafka=SERVICES["kafka"]["image"], postgres=SERVICES["postgres"]["image"])
        arguments = ["--network", "host", "--build-arg", f"BASE={BASE}"]
    run(
        "docker", "build", *arguments, "--tag", SERVICES["airflow-scheduler"]["image"], str(folder), DOCKER_BUILDKIT="1"
    )
    try:
        compose(folder, "up", "--detach")
        wait_for("all services are healthy", all_are_well, PATIENCE_SECONDS, 5)
        yield folder
    finally:
        compose(folder, "down", "--volumes", "--timeout", "10")


def all_are_well() -> bool:
    label = f"label=com.docker.compose.project={PROJECT}"
    listed = run("docker", "ps", "--all", "--filter", label, "--format", "{{.Status}}").splitlines()
    return len(listed) == len(SERVICES) and all("(healthy)" in one or "Exited (0)" in one for one in listed)


def compose(folder: Path, *arguments: str) -> str:
    """What a command of Compose printed, in a project of this test's own."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    program = ["docker", "compose"] if plugin else ["docker-compose"]
    file = str(folder / "docker-compose.yaml")
    return run(*program, "--project-directory", str(folder), "--file", file, "--project-name", PROJECT, *arguments)


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
def test_airflow_runs_an_epoch_on_the_server_of_spark_in_containers(checkout: Path) -> None:
    """G3: the task is a client in the scheduler's container, the server another one, its executors on both workers."""
    make = ("python", "-m", "epochline_examples.access_log.maker", "--lines", "500", "--out", "/tmp/more.log")
    in_airflow(checkout, *make)
    in_airflow(checkout, "epochline", "feed", "/tmp/more.log", "--topic", "access_log")

    in_airflow(checkout, "airflow", "dags", "unpause", "access_log")

    # The schedule starts a run as soon as the DAG may run.
    asked = "SELECT 1 FROM epochline.epochs WHERE state = 'COMMITTED' AND run_id LIKE 'scheduled%'"
    wait_for("the run commits", lambda: in_airflow(checkout, "epochline", "sql", "--json", asked).strip(), 600, 5)
    in_airflow(checkout, "epochline", "audit", "access_log")


@pytest.mark.long
def test_no_process_in_a_container_compiles_a_module(checkout: Path) -> None:
    """The image holds bytecode of Python, of the packages and of the library. Only the test's own module has none."""
    imports = (
        'import sys; sys.stderr = sys.stdout; sys.path.append("/tmp");'
        " import fresh, epochline.declare.pipeline, airflow.models, pyspark.sql"
    )
    said = in_airflow(checkout, "sh", "-c", f"touch /tmp/fresh.py && python -v -c '{imports}' 2>&1")

    # Python quotes the name of a file of bytecode, and not that of a source that it compiled.
    source = "# code object from /"
    compiled = [line.removeprefix(source) for line in said.splitlines() if line.startswith(source)]
    assert compiled == ["tmp/fresh.py"]
