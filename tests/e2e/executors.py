"""An Airflow of one's own on several machines: its servers, its schedulers, its workers."""

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg2

from epochline.config.connections import KAFKA, POSTGRES
from epochline.local.stack import Stack
from epochline.postgres.ledger.migrate import upgrade
from tests.airflow import rest
from tests.airflow.conftest import Scheduler, eventually
from tests.conftest import AIRFLOW_DAGS, FUNCTIONS
from tests.e2e.machines import SERVERS, Machine, Room, machine_room
from tests.e2e.own_servers import NEWEST, kafka, make_environment, postgres, running

DAG_FILE = "machines.py"
CELERY = Path(__file__).with_name("celery.txt")
"""What the provider of the CeleryExecutor brings, pinned."""

_SHARED = {
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
"""What every process of an Airflow must have alike."""


@dataclass
class OwnAirflow:
    """Servers, an environment with Airflow, and machines to run it on."""

    folder: Path
    variables: dict[str, str]
    """Of the machine of the servers."""
    database: str
    """URL of PostgreSQL's superuser without a database."""
    broker: str
    """Address of Kafka."""
    room: Room
    shared: dict[str, str] = field(default_factory=dict)
    """What every process of this Airflow is given, besides `_SHARED`."""

    @property
    def url(self) -> str:
        return f"http://{SERVERS}:{self.variables['AIRFLOW__API__PORT']}"

    @property
    def metadata(self) -> dict[str, str]:
        """What leads to Airflow's database, which no worker of Celery's is given."""
        url = self.database.replace("postgresql:", "postgresql+psycopg2:")
        key = base64.urlsafe_b64encode(b"a fernet key is of thirty-two by").decode()
        return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"{url}/airflow", "AIRFLOW__CORE__FERNET_KEY": key}

    def here(self) -> dict[str, str]:
        """The variables of Airflow's processes on the machine of the servers."""
        return {**self.variables, **_SHARED, **self.metadata, **self.shared, **of_project(self.folder / "airflow")}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A process of Airflow's on the machine of the servers, from its first answer on."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [self.folder / "venv" / "bin" / "airflow", name]
            with running(
                command, lambda: is_healthy(self, name), env=self.here(), cwd=self.folder, stdout=log, stderr=log
            ):
                yield

    def start(self, name: str, *command: str, **variables: str) -> Machine:
        """Start Airflow's command on a machine, which has its own copies of the declaration and of its functions."""
        machine = self.room.machine(name)
        project = machine.home / f"project of {name}"
        if not project.exists():
            copy_project(project)
            for folder in ("airflow", "epochline", "scratch"):
                (machine.home / folder).mkdir()
        own = {
            "AIRFLOW_HOME": str(machine.home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "EPOCHLINE_HOME": str(machine.home / "epochline"),
            # The API server asks for logs at its own setting of this port.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": self.variables["AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT"],
            "LANG": "C.UTF-8",
            "PATH": f"{self.folder / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            # Every second machine has its temporary files in the usual folder.
            **({"TMPDIR": str(machine.home / "scratch")} if machine.number % 2 else {}),
        }
        machine.start(["airflow", *command], {**_SHARED, **self.shared, **own, **of_project(project), **variables})
        return machine

    def let_go(self, pipeline: str) -> None:
        """What waits in a record of a pipeline goes on, wherever it is read."""
        for machine in self.room.machines.values():
            (machine.home / "epochline" / f"{pipeline}-may-go").touch()

    def scheduler(self) -> Scheduler:
        """The Airflow as tests of the embedded one know it; its DAGs are there and unpaused."""
        stack = SimpleNamespace(
            airflow=SimpleNamespace(url=self.url),
            postgres=SimpleNamespace(dsn=lambda: f"{self.database}/shop"),
            kafka=SimpleNamespace(bootstrap_servers=self.broker),
        )
        token = rest.call(cast("Any", stack.airflow), "", "GET", "/auth/token")["access_token"]
        one = Scheduler(cast("Stack", stack), str(token))
        if one.call("GET", "/api/v2/connections")["total_entries"] == 0:
            for connection in self._connections():
                one.call("POST", "/api/v2/connections", connection)
        eventually("every DAG is there", lambda: "files_apart" in one.dags(), 120)
        for dag in one.dags():
            one.pause(dag, False)
        return one

    def _connections(self) -> Iterator[dict[str, Any]]:
        """What Airflow's database keeps, and the workers ask its API for."""
        at = urlsplit(self.database)
        login = {"login": at.username, "password": at.password}
        yield {
            "connection_id": POSTGRES,
            "conn_type": "postgres",
            "host": at.hostname,
            "port": at.port,
            "schema": "shop",
            **login,
        }
        yield {"connection_id": KAFKA, "conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": self.broker})}
        yield {"connection_id": "spark_default", "conn_type": "spark", "host": "local[2]"}

    def hosts(self, scheduler: Scheduler, dag: str, run: str) -> dict[str, str]:
        """The machine of each task's last try."""
        names = {machine.address: name for name, machine in self.room.machines.items()}
        return {task: names.get(one["hostname"], "") for task, one in scheduler.instances(dag, run).items()}


def of_project(project: Path) -> dict[str, str]:
    """The variables by which a process finds the project's functions."""
    return {"EPOCHLINE_PROJECT": str(project), "PYTHONPATH": str(project / "spark_jobs")}


def copy_project(project: Path) -> None:
    for folder, file in (("dags", AIRFLOW_DAGS / DAG_FILE), ("spark_jobs", FUNCTIONS / "scripted.py")):
        (project / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, project / folder)


def is_healthy(airflow: OwnAirflow, part: str) -> bool:
    """Whether the API server answers, and says that the other part is well."""
    with suppress(OSError, AssertionError):
        health = rest.call(cast("Any", airflow), "", "GET", "/api/v2/monitor/health")
        return part == "api-server" or health[part.replace("-", "_")]["status"] == "healthy"
    return False


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
        broker = stack.enter_context(kafka(folder, SERVERS))
        with closing(psycopg2.connect(f"{database}/postgres")) as session:
            session.autocommit = True
            for name in ("airflow", "shop"):
                session.cursor().execute(f"CREATE DATABASE {name}")
        upgrade(f"{database}/shop")
        airflow = OwnAirflow(folder, variables, database, f"{SERVERS}:{broker}", room)
        copy_project(folder / "airflow")
        subprocess.run(
            [folder / "venv" / "bin" / "airflow", "db", "migrate"], env=airflow.here(), check=True, cwd=folder
        )
        yield airflow


@contextmanager
def parts(airflow: OwnAirflow, names: Sequence[str]) -> Iterator[Scheduler]:
    """These processes of Airflow's on the machine of the servers, after the API server."""
    with ExitStack() as stack:
        for name in ("api-server", *names):
            stack.enter_context(airflow.part(name))
        yield airflow.scheduler()
