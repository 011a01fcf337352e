"""Airflow 3.3.2 with the LocalExecutor: one process each for API server, scheduler, DAG processor and triggerer."""

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from epochline.config import places
from epochline.config.extras import install
from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import LOOPBACK, Home, Ports, write_private
from epochline.local.kafka import Kafka
from epochline.local.part import Part, shipped_settings
from epochline.local.postgres import Postgres, client_environment
from epochline.local.spark import Spark, task_environment
from epochline.local.spark_home import spark_home

ADMIN = "admin"
SILENT_SCHEDULER = "scheduler is unhealthy"
"""What `reported_trouble` says of a scheduler that reported after its start, but not in the last half minute."""
# Requests to loopback must not go through a proxy of the environment.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# Without the log server, which listens on all addresses: the API server reads the log files directly.
_PROCESSES: Mapping[str, Sequence[str]] = {
    "api-server": (), "scheduler": ("--skip-serve-logs",), "dag-processor": (), "triggerer": ("--skip-serve-logs",),
}  # fmt: skip
# Variables of the caller's shell for another Airflow or Spark must not leak into this one.
_FOREIGN = ("AIRFLOW", "SPARK_", "PYSPARK_", "PYTEST_", "PYTHONPATH", "_AIRFLOW")


class Airflow(Part):
    """The four Airflow processes of one home."""

    name = "airflow"

    def __init__(
        self,
        home: Home,
        ports: Ports,
        *,
        postgres: Postgres,
        kafka: Kafka,
        spark: Spark,
        config: Mapping[str, str],
        dags_folder: Path | None,
        extra_pythonpath: Sequence[Path],
    ) -> None:
        super().__init__(home, ports, *(f"airflow-{name}" for name in _PROCESSES))
        self._postgres, self._kafka, self._spark = postgres, kafka, spark
        self._config = config
        self.dags_folder = dags_folder or places.dags_folder()
        """The folder with the DAG files."""
        self._extra_pythonpath = extra_pythonpath
        self.password_file = home.path("airflow", "passwords.json")
        """The file with the password of the user `admin`, as Airflow's simple auth manager reads it."""

    @property
    def url(self) -> str:
        """The URL of the user interface and the REST API."""
        return f"http://{LOOPBACK}:{self.port}"

    def version(self) -> str:
        """The installed version of Airflow."""
        return version("apache-airflow")

    def admin_password(self) -> str:
        """The password of the user `admin`."""
        return credentials.require(self._home).airflow_admin

    def environment(self) -> dict[str, str]:
        """The variables that the processes and tasks get in addition to the caller's environment. They hold passwords.

        The ``config`` of the stack, with names such as `AIRFLOW__CORE__PARALLELISM`, wins.
        """
        return {**self._settings(), **self._connections(), **self._of_tasks(), **self._config}

    def whole_environment(self) -> dict[str, str]:
        """The caller's environment without another Airflow's or Spark's variables, and `environment`."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        return {**inherited, **self.environment()}

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Airflow's own program with its arguments; run it in `whole_environment`."""
        return [sys.executable, "-m", "airflow", *arguments]

    def start(self) -> None:
        """Start each of the four processes that does not run. PostgreSQL must be ready."""
        if all(self.pids.values()):
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.write_password_file()
        environment = self.whole_environment()
        # Airflow opens a second, asynchronous engine on the same database, which needs this driver.
        if importlib.util.find_spec("asyncpg") is None:
            needed = "the package asyncpg, which Airflow needs for PostgreSQL, is missing"
            raise StackError(f"{needed}; run `{install('stack')}`")
        self._migrate(environment)
        for name, arguments in _PROCESSES.items():
            if self.daemons[name].pid is None:
                self.daemons[name].start(self.command([name, *arguments]), environment=environment, cwd=self.folder)

    def wait(self, seconds: float = 240) -> None:
        """Wait until the API answers and reports scheduler, DAG processor and triggerer as healthy.

        A scheduler that reports no more and runs no task is started again. One that lost its database ends when its
        workers have ended, and some of these may wait for a word that it gave to others: it then hangs for ever
        (https://github.com/apache/airflow/issues/67870).
        """

        def ready() -> str | None:
            for daemon in self.daemons.values():
                if daemon.pid is None:
                    raise StackError(f"{daemon.name} ended while starting. {daemon.log_tail()}")
            missing = self.health()
            scheduler = self.daemons["scheduler"]
            if missing == SILENT_SCHEDULER and (pid := scheduler.pid) is not None and self._runs_no_task(pid):
                scheduler.stop()
                self.start()
            return missing

        self.daemons["api-server"].wait_ready(ready, seconds)

    def health(self) -> str | None:
        """None if all four processes run and are healthy; else what is wrong."""
        gone = [name for name, pid in self.pids.items() if pid is None]
        if gone:
            return f"not running: {', '.join(gone)}"
        if super().health() is not None:
            return f"the API server does not listen on port {self.port} yet"
        since = {name: self.daemons[name].started_at or 0.0 for name in _PROCESSES if name != "api-server"}
        try:
            with _OPENER.open(f"{self.url}/api/v2/monitor/health", timeout=5) as response:
                return reported_trouble(json.load(response), since)
        except (OSError, ValueError, HTTPException) as error:
            return f"the API server does not answer ({type(error).__name__}: {error})"

    def _migrate(self, environment: Mapping[str, str]) -> None:
        # The command takes ten seconds even if there is nothing to migrate.
        done = self.folder / "database-version"
        if done.exists() and done.read_text() == self.version():
            return
        answer = subprocess.run(
            self.command(("db", "migrate")),
            capture_output=True, text=True, env=dict(environment), cwd=self.folder, check=False,
        )  # fmt: skip
        log = self._home.logs / "airflow-migrate.log"
        write_private(log, answer.stdout + answer.stderr)
        if answer.returncode != 0:
            raise StackError(
                f"`airflow db migrate` failed with exit code {answer.returncode}. Its output is in {log} and ends with:"
                f" {' | '.join(answer.stderr.splitlines()[-2:])}. Run `epochline up` to try again."
            )
        write_private(done, self.version())

    def _runs_no_task(self, scheduler: int) -> bool:
        """Whether the workers of the scheduler with this pid are idle or dead, so that its end stops no task."""
        with suppress(psutil.NoSuchProcess):
            workers = psutil.Process(scheduler).children()
            return all(worker.status() == psutil.STATUS_ZOMBIE or self._is_idle(worker) for worker in workers)
        return False

    def _is_idle(self, process: psutil.Process) -> bool:
        """Whether it is a worker of the LocalExecutor that has no task. Such a worker ignores SIGTERM."""
        return process.cmdline()[:1] == ["airflow worker -- LocalExecutor: <idle>"]

    def write_password_file(self) -> None:
        """Write the administrator's password, which Airflow would else make up and print; other users keep theirs."""
        secret = credentials.require(self._home)
        try:
            passwords = dict(json.loads(self.password_file.read_text()))
        except (FileNotFoundError, ValueError):
            passwords = {}
        write_private(self.password_file, json.dumps({**passwords, ADMIN: secret.airflow_admin}) + "\n")

    def _settings(self) -> dict[str, str]:
        secret = credentials.require(self._home)
        logs = self._home.logs / "airflow"
        settings = {
            **shipped_settings(self.name),
            "CORE__DAGS_FOLDER": str(self.dags_folder),
            "CORE__PLUGINS_FOLDER": str((places.checkout() or places.project_folder()) / "plugins"),
            "CORE__FERNET_KEY": secret.airflow_fernet_key,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.password_file),
            "DATABASE__SQL_ALCHEMY_CONN": self._postgres.dsn("airflow").replace("postgresql", "postgresql+psycopg2", 1),
            "API__PORT": str(self.port),
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": secret.airflow_api_secret_key,
            "API_AUTH__JWT_SECRET": secret.airflow_jwt_secret,
            "LOGGING__BASE_LOG_FOLDER": str(logs),
            "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(logs / "dag_processor"),
        }
        return {
            "AIRFLOW_HOME": str(self._home.path("airflow")),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        }

    def _connections(self) -> dict[str, str]:
        secret = credentials.require(self._home)
        postgres = {"conn_type": "postgres", "host": LOOPBACK, "port": self._postgres.port, "schema": "epochline"}
        connections = {
            "EPOCHLINE_POSTGRES": {**postgres, "login": "epochline", "password": secret.epochline},
            "EPOCHLINE_WRITER": {**postgres, "login": credentials.JOB, "password": secret.epochline_job},
            "EPOCHLINE_READER": {**postgres, "login": credentials.VIEWER, "password": secret.epochline_viewer},
            "EPOCHLINE_KAFKA": {
                "conn_type": "kafka", "extra": {"bootstrap.servers": self._kafka.bootstrap_servers},
            },
            "SPARK_DEFAULT": {
                "conn_type": "spark_connect", "host": "localhost", "port": self._spark.port,
                "password": secret.spark_token, "extra": {"cores": self._spark.cores},
            },
            "SPARK_SUBMIT": {"conn_type": "spark", "host": self._spark.driver_master},
        }  # fmt: skip
        # As JSON, because `local[2]` is not a valid host in a URI.
        return {f"AIRFLOW_CONN_{name}": json.dumps(connection) for name, connection in connections.items()}

    def _of_tasks(self) -> dict[str, str]:
        binaries = Path(sys.executable).parent
        proxied = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        direct = ",".join(filter(None, (proxied, LOOPBACK, "localhost")))
        return {
            **task_environment(self._home, spark_home(), self._extra_pythonpath),
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # A driver runs for seconds here, on few cores: the second compiler and a parallel collector do not pay off.
            "SPARK_SUBMIT_OPTS": " ".join(
                f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_options()} {self._spark.driver_options}".split()
            ),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "NO_PROXY": direct,
            "no_proxy": direct,
            **client_environment(self._postgres),
        }


def reported_trouble(health: Mapping[str, Any], since: Mapping[str, float]) -> str | None:
    """What is wrong by Airflow's report of its health; None if the database and each part in `since` are healthy.

    Airflow reports a killed scheduler as healthy for half a minute. So a part's last heartbeat must be later than its
    start in `since`, in seconds since 1970.
    """
    for key, value in health.items():
        part = key.replace("_", "-")
        if part not in since and part != "metadatabase":
            continue
        if part in since and _moment(value.get(f"latest_{key}_heartbeat")) < since[part]:
            return f"{part} has not reported since it was started"
        if value.get("status") != "healthy":
            return f"{part} is {value.get('status') or 'not reporting'}"
    return None


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
