"""An Airflow of one's own on several machines: its servers, its schedulers, its workers."""

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg2

from epochline.config.connections import KAFKA, POSTGRES
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import upgrade
from tests.airflow import rest
from tests.airflow.conftest import Scheduler, eventually
from tests.conftest import FUNCTIONS
from tests.declared import find_all
from tests.e2e.machines import SERVERS, Machine, Room, machine_room
from tests.e2e.own_servers import NEWEST, kafka, make_environment, postgres, running

DAGS = Path(__file__).with_name("dags")
CELERY = Path(__file__).with_name("celery.txt")
"""What the provider of the CeleryExecutor brings, pinned."""


@dataclass
class OwnAirflow:
    """Servers, an environment with Airflow, and machines to run it on."""

    folder: Path
    room: Room
    variables: dict[str, str]
    """Of Airflow's processes on the machine of the servers."""
    metadata: dict[str, str]
    """What leads to Airflow's database, which no worker of Celery's is given."""
    scheduler: Scheduler
    """The Airflow as tests of the embedded one know it."""
    shared: dict[str, str] = field(
        default_factory=lambda: {
            "AIRFLOW__API__SECRET_KEY": "of-the-test-of-executors",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of-the-test-of-executors-that-is-long-enough-for-hs512-tokens-of-airflow",
            # By its address, where the API server asks for the logs of its tasks.
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "airflow.utils.net.get_host_ip_address",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # As docs/operations.md advises, and quicker.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        }
    )
    """What every process of this Airflow must have alike."""

    def here(self) -> dict[str, Any]:
        """How its processes are started on the machine of the servers."""
        return {
            "env": {**self.variables, **self.shared, **self.metadata, **copy_project(self.folder / "airflow")},
            "cwd": self.folder,
        }

    @contextmanager
    def running(self, *parts: str) -> Iterator[None]:
        """The API server and other parts on the machine of the servers; then every DAG is there and unpaused."""
        with ExitStack() as stack:
            log = stack.enter_context((self.folder / "airflow.log").open("ab"))
            for part in ("api-server", *parts):
                command = [self.folder / "venv" / "bin" / "airflow", part]
                is_healthy = lambda part=part: self._is_healthy(part)  # noqa: E731
                stack.enter_context(running(command, is_healthy, **self.here(), stdout=log, stderr=log))
            login = rest.call(self.scheduler.stack.airflow, "", "GET", "/auth/token")
            self.scheduler.token = login["access_token"]
            dags = set(find_all(DAGS))
            eventually("every DAG is there", lambda: dags <= self.scheduler.dags(), 120)
            for dag in dags:
                self.scheduler.pause(dag, False)
            yield

    def _is_healthy(self, part: str) -> bool:
        with suppress(OSError, AssertionError):
            health = rest.call(self.scheduler.stack.airflow, "", "GET", "/api/v2/monitor/health")
            return part == "api-server" or health[part.replace("-", "_")]["status"] == "healthy"
        return False

    def start(self, name: str, *command: str, **variables: str) -> Machine:
        """Start Airflow's command on a machine, which has its own copies of the declaration and of its functions."""
        machine = self.room.machine(name)
        for folder in ("airflow", "epochline", "scratch"):
            (machine.home / folder).mkdir(exist_ok=True)
        project = machine.home / f"project of {name}"
        own = {
            **copy_project(project),
            "AIRFLOW_HOME": str(machine.home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.scheduler.stack.airflow.url}/execution/",
            "EPOCHLINE_HOME": str(machine.home / "epochline"),
            # The API server asks for logs at its own setting of this port.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": self.variables["AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT"],
            "LANG": "C.UTF-8",
            "PATH": f"{self.folder / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            # Every second machine has its temporary files in the usual folder.
            **({"TMPDIR": str(machine.home / "scratch")} if machine.number % 2 else {}),
        }
        machine.start(["airflow", *command], {**self.shared, **own, **variables})
        return machine

    def let_go(self, pipeline: str) -> None:
        """What waits in a record of a pipeline goes on, wherever it is read."""
        for machine in self.room.machines.values():
            (machine.home / "epochline" / f"{pipeline}-may-go").touch()


def copy_project(project: Path) -> dict[str, str]:
    """The variables by which a process finds its copy of the project."""
    for folder, file in (("dags", DAGS / "apart.py"), ("spark_jobs", FUNCTIONS / "scripted.py")):
        (project / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, project / folder)
    return {"EPOCHLINE_PROJECT": str(project), "PYTHONPATH": str(project / "spark_jobs")}


def install(folder: Path) -> dict[str, str]:
    """Make the environment, and give the variables of who uses it on the machine of the servers."""
    variables = make_environment(folder, NEWEST, SERVERS)
    online = {name: value for name, value in variables.items() if name != "UV_OFFLINE"}
    pip = [str(folder / "venv" / "bin" / "pip"), "install", "--quiet"]
    subprocess.run([*pip, "epochline[airflow,spark]", "asyncpg", "-r", str(CELERY)], check=True, env=online)
    return variables


@contextmanager
def own_airflow() -> Iterator[OwnAirflow]:
    """Servers of Kafka and PostgreSQL, and an environment with Airflow, its provider of Celery, and the wheel."""
    # Not in the usual folder for temporary files, of which each machine has its own.
    folder = Path(tempfile.mkdtemp(prefix="epochline-machines-", dir="/var/tmp"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        room = stack.enter_context(machine_room(folder))
        variables = install(folder)
        database = stack.enter_context(postgres(folder, SERVERS))
        broker = f"{SERVERS}:{stack.enter_context(kafka(folder, SERVERS))}"
        with closing(psycopg2.connect(f"{database}/postgres")) as session:
            session.autocommit = True
            for name in ("airflow", "shop"):
                session.cursor().execute(f"CREATE DATABASE {name}")
        upgrade(f"{database}/shop")
        metadata = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"{database.replace('postgresql:', 'postgresql+psycopg2:')}/airflow",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(b"a fernet key is of thirty-two by").decode(),
        }
        parts = SimpleNamespace(
            airflow=SimpleNamespace(url=f"http://{SERVERS}:{variables['AIRFLOW__API__PORT']}"),
            postgres=SimpleNamespace(dsn=lambda: f"{database}/shop"),
            kafka=SimpleNamespace(bootstrap_servers=broker),
        )
        scheduler = Scheduler(cast("Stack", parts), token="", folder=DAGS)
        airflow = OwnAirflow(folder, room, {**variables, **connections(database, broker)}, metadata, scheduler)
        subprocess.run([folder / "venv" / "bin" / "airflow", "db", "migrate"], check=True, **airflow.here())
        yield airflow


def connections(database: str, broker: str) -> dict[str, str]:
    """What the machine of the servers alone has, so that the workers ask Airflow's API for it."""
    of = {
        POSTGRES: f"{database.replace('postgresql:', 'postgres:')}/shop",
        KAFKA: json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": broker}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    return {f"AIRFLOW_CONN_{name.upper()}": value for name, value in of.items()}
