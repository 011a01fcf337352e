"""Everything that the nemesis may break: three Kafka nodes, PostgreSQL with a standby, Airflow and its Spark server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg2

from epochline.errors import StackError
from epochline.local.stack import Stack
from tests.airflow.rest import call, token
from tests.commands import in_processes, kafka_connection
from tests.conftest import kill_airflow
from tests.crash.nodes import Nodes
from tests.crash.pair import Pair
from tests.databases import as_connection, query
from tests.integration.kafka_topics import make_topic
from tests.nemesis.declared import FOLDER, NAME, PARTITIONS, SHOWN, SOURCE
from tests.ports import choose_ports
from tests.waiting import wait_for

HERE = Path(__file__).parent
_HEARTBEAT = "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"


class World:
    """Servers that run, a pipeline that runs by its schedule, and who starts again what ends of Airflow and Spark."""

    def __init__(self, home: Path, nodes: Nodes, pair: Pair) -> None:
        self.home, self.nodes, self.pair = home, nodes, pair
        self.files = home / "files"
        self.files.mkdir()
        self.database = Pair.name_of(pair.new_database())
        kafka = kafka_connection(nodes.bootstrap_servers)
        self.stack = Stack(
            home / "airflow", dags_folder=HERE / "dags", extra_pythonpath=(HERE.parents[1],),
            airflow_config={
                "AIRFLOW_CONN_EPOCHLINE_POSTGRES": as_connection(self.dsn),
                "AIRFLOW_CONN_EPOCHLINE_KAFKA": kafka,
                FOLDER: str(self.files),
                _HEARTBEAT: "15",
                f"{_HEARTBEAT}_DETECTION_INTERVAL": "3",
            },
        )  # fmt: skip
        os.environ[FOLDER] = str(self.files)
        self._over = threading.Event()
        self._service_manager = threading.Thread(target=self._start_again, daemon=True)

    @classmethod
    @contextmanager
    def running(cls, home: Path) -> Iterator[World]:
        """Make the servers, the tables and the topics, and let the scheduler begin."""
        with ExitStack() as opened:
            nodes = opened.enter_context(Nodes.running())
            pair = opened.enter_context(Pair.running())
            world = cls(home, nodes, pair)
            try:
                world._begin()
                yield world
            finally:
                world._over.set()
                if world._service_manager.is_alive():
                    world._service_manager.join(60)
                kill_airflow(world.stack)
                world.stack.down(wipe=False)  # its logs say why something went wrong

    def _begin(self) -> None:
        for topic in (SOURCE, SHOWN):
            make_topic(self.nodes.bootstrap_servers, topic, PARTITIONS)
        self.command("migrate")
        choose_ports(self.stack.home)
        self.stack.up(parts=("airflow",), report=lambda _line: None)
        self._service_manager.start()
        wait_for("the DAG is there", lambda: self.call("GET", f"/api/v2/dags/{NAME}"), seconds=120, every=0.5)
        self.call("PATCH", f"/api/v2/dags/{NAME}", {"is_paused": False})

    def _start_again(self) -> None:
        """What systemd or Compose would do."""
        while not self._over.wait(1):
            with suppress(StackError):
                self.stack.spark.start()
                self.stack.airflow.start()

    @cached_property
    def command(self) -> Any:
        """Runs a command of `epochline` on the pipeline."""
        return in_processes(HERE / "dags", postgres=self.dsn, kafka=self.nodes.bootstrap_servers, **self._paths)

    @property
    def _paths(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE.parents[1] / "include")))}

    @property
    def dsn(self) -> str:
        """The URL of the pipeline's database, which names both servers."""
        return self.pair.dsn(self.database)

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the server that takes writes; nothing, while there is none."""
        with suppress(psycopg2.OperationalError):
            return query(self.dsn, text, *values, connect_timeout=5)
        return []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Airflow's API; None, while it does not answer."""
        with suppress(OSError, AssertionError):
            return call(self.stack.airflow, token(self.stack.airflow), method, path, body)
        return None

    def phase(self) -> str | None:
        """What the unfinished epoch waits for; None without one."""
        asked = (
            "SELECT CASE WHEN state = 'PRE_COMMITTED' THEN 'commit' WHEN attempt > 0 THEN 'stage' ELSE 'plan' END"
            " FROM epochline.epochs WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED')"
        )
        return next((str(phase) for (phase,) in self.query(asked, NAME)), None)
