"""Airflow's settings, connections and its tasks' environment, as environment variables."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epochline.local import credentials
from epochline.local.class_archive import class_options
from epochline.local.home import Home, project_root, write_private
from epochline.local.kafka import Kafka
from epochline.local.ports import LOOPBACK
from epochline.local.postgres import Postgres, client_environment
from epochline.local.spark import Spark, task_environment
from epochline.local.spark_home import spark_home

ADMIN = "admin"


@dataclass(frozen=True, kw_only=True)
class AirflowSettings:
    """The environment of one home's Airflow. `config`, with names such as `AIRFLOW__CORE__PARALLELISM`, wins."""

    home: Home
    postgres: Postgres
    kafka: Kafka
    spark: Spark
    config: Mapping[str, str] = field(default_factory=dict)
    dags_folder: Path | None = None
    extra_pythonpath: Sequence[Path] = ()

    @property
    def password_file(self) -> Path:
        """The file from which the simple auth manager reads passwords."""
        return self.home.path("airflow", "passwords.json")

    def write_password_file(self) -> None:
        """Write the administrator's password, which Airflow would else make up and print; other users keep theirs."""
        secret = credentials.require(self.home)
        try:
            others = dict(json.loads(self.password_file.read_text()))
        except (FileNotFoundError, ValueError):
            others = {}
        write_private(self.password_file, json.dumps({**others, ADMIN: secret.airflow_admin}) + "\n")

    def environment(self, port: int) -> dict[str, str]:
        """All variables for the processes; tasks inherit them."""
        return {**self._airflow(port), **self._connections(), **self._tasks(), **self.config}

    def _airflow(self, port: int) -> dict[str, str]:
        secret = credentials.require(self.home)
        url = f"http://{LOOPBACK}:{port}"
        logs = self.home.logs / "airflow"
        settings = {
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__DAGS_FOLDER": str(self.dags_folder or project_root() / "dags"),
            "CORE__PLUGINS_FOLDER": str(project_root() / "plugins"),
            "CORE__LOAD_EXAMPLES": "False",
            # The file of a pipeline may contain neither the word DAG nor airflow: the package makes the DAG.
            "CORE__DAG_DISCOVERY_SAFE_MODE": "False",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "CORE__PARALLELISM": "8",
            "CORE__FERNET_KEY": secret.airflow_fernet_key,
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.password_file),
            "DATABASE__SQL_ALCHEMY_CONN": self.postgres.sqlalchemy_url("airflow"),
            "API__HOST": LOOPBACK,
            "API__PORT": str(port),
            "API__BASE_URL": url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": secret.airflow_api_secret_key,
            "API_AUTH__JWT_SECRET": secret.airflow_jwt_secret,
            # By default one second, four times per epoch. Less than half a second takes more of the processor while
            # nothing runs than it saves of an epoch (docs/performance.md).
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            # By default, a task whose worker was killed counts as running for five minutes, and so its epoch waits.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            # Also five minutes by default, for a task that was killed together with its scheduler.
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
            # The health check would listen on all addresses; the stack uses the API server and the pid files instead.
            "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": LOOPBACK,
            # New files are found after 15 s, and a changed file is read at once. An unchanged one is read again because
            # a module that it imports may have changed, which is rare: each reading takes a process and a second.
            "DAG_PROCESSOR__REFRESH_INTERVAL": "15",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
            "LOGGING__BASE_LOG_FOLDER": str(logs),
            "LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(logs / "dag_processor"),
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        return {
            "AIRFLOW_HOME": str(self.home.path("airflow")),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        }

    def _connections(self) -> dict[str, str]:
        secret = credentials.require(self.home)
        postgres = {"conn_type": "postgres", "host": LOOPBACK, "port": self.postgres.port, "schema": "epochline"}
        owner = {**postgres, "login": "epochline", "password": secret.epochline}
        writer = {**postgres, "login": credentials.JOB, "password": secret.epochline_job}
        reader = {**postgres, "login": credentials.VIEWER, "password": secret.epochline_viewer}
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.kafka.bootstrap_servers}}
        spark = {
            "conn_type": "spark_connect", "host": "localhost", "port": self.spark.port, "password": secret.spark_token,
            "extra": {"cores": self.spark.cores},
        }  # fmt: skip
        # As JSON, because `local[2]` is not a valid host in a URI.
        submit = {"conn_type": "spark", "host": self.spark.driver_master}
        return {
            "AIRFLOW_CONN_EPOCHLINE_POSTGRES": json.dumps(owner),
            "AIRFLOW_CONN_EPOCHLINE_WRITER": json.dumps(writer),
            "AIRFLOW_CONN_EPOCHLINE_READER": json.dumps(reader),
            "AIRFLOW_CONN_EPOCHLINE_KAFKA": json.dumps(kafka),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            "AIRFLOW_CONN_SPARK_SUBMIT": json.dumps(submit),
        }

    def _tasks(self) -> dict[str, str]:
        binaries = Path(sys.executable).parent
        proxied = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        direct = ",".join(filter(None, (proxied, LOOPBACK, "localhost")))
        return {
            **task_environment(self.home, spark_home(), self.extra_pythonpath),
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            # A driver runs for seconds here, on few cores: the second compiler and a parallel collector do not pay off.
            "SPARK_SUBMIT_OPTS": " ".join(
                f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_options()} {self.spark.driver_options}".split()
            ),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "NO_PROXY": direct,
            "no_proxy": direct,
            **client_environment(self.postgres),
        }
