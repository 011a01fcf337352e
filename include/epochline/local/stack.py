"""Start, inspect and stop the stack of one home."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, computed_field

from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.home import Home, Ports
from epochline.local.kafka import Kafka
from epochline.local.postgres import Postgres, binaries
from epochline.local.spark import Spark

if TYPE_CHECKING:
    from epochline.local.airflow import Airflow

    Part = Postgres | Kafka | Spark | Airflow

PARTS = ("postgres", "kafka", "spark", "airflow")


class State(StrEnum):
    """The state of a part."""

    RUNNING = "running"  # and answering
    UNREADY = "unready"  # it does not answer (yet), or some of its processes do not run
    CRASHED = "crashed"  # a process ended without `down`
    STOPPED = "stopped"


class PartStatus(BaseModel):
    """One part of the stack."""

    model_config = ConfigDict(frozen=True)

    state: State
    detail: str = ""  # what is wrong, in words
    version: str
    port: int | None = None
    pids: dict[str, int | None]
    logs: list[Path]


class PostgresStatus(PartStatus):
    """PostgreSQL. The DSN has no password."""

    dsn: str | None = None
    service_file: Path
    password_file: Path


class KafkaStatus(PartStatus):
    """Kafka."""

    bootstrap_servers: str | None = None


class SparkStatus(PartStatus):
    """Spark's server. The address has no token."""

    address: str | None = None
    master: str | None = None  # of the cluster that runs the server's tasks


class AirflowStatus(PartStatus):
    """Airflow."""

    url: str | None = None
    user: str = "admin"
    password_file: Path
    dags_folder: Path


class StackStatus(BaseModel):
    """All parts of the stack in one home."""

    model_config = ConfigDict(frozen=True)

    home: Path
    secrets_file: Path
    postgres: PostgresStatus
    kafka: KafkaStatus
    spark: SparkStatus
    airflow: AirflowStatus

    @computed_field  # type: ignore[prop-decorator]
    @property
    def healthy(self) -> bool:
        """Whether every part runs and answers."""
        return all(part.state is State.RUNNING for part in self.parts.values())

    @property
    def parts(self) -> dict[str, PartStatus]:
        """The parts by name."""
        return {"postgres": self.postgres, "kafka": self.kafka, "spark": self.spark, "airflow": self.airflow}


class Stack:
    """PostgreSQL, Kafka, Spark and Airflow under one home. Stacks in different homes are independent.

    Args:
        home: the folder; `config.places.home_folder` if not given.
        airflow_config: more variables for Airflow's processes, such as `AIRFLOW__CORE__PARALLELISM`. This and the
            following arguments are not stored: they apply to servers that this object starts.
        dags_folder: replaces `config.places.dags_folder`.
        extra_pythonpath: more folders from which tasks can import.
        postgres_settings: more settings of postgresql.conf.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        airflow_config: Mapping[str, str] | None = None,
        dags_folder: Path | None = None,
        extra_pythonpath: Sequence[Path] = (),
        postgres_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.home = Home(home)
        self._ports = Ports(self.home)
        self.postgres = Postgres(self.home, self._ports, postgres_settings)
        self.kafka = Kafka(self.home, self._ports)
        self.spark = Spark(self.home, self._ports, extra_pythonpath=extra_pythonpath)
        self._airflow_config = airflow_config or {}
        self._dags_folder = dags_folder
        self._extra_pythonpath = extra_pythonpath

    @cached_property
    def airflow(self) -> Airflow:
        """Airflow. Its module is imported here, because commands for the other parts do not need it."""
        from epochline.local.airflow import Airflow

        return Airflow(
            self.home, self._ports, postgres=self.postgres, kafka=self.kafka, spark=self.spark,
            config=self._airflow_config, dags_folder=self._dags_folder, extra_pythonpath=self._extra_pythonpath,
        )  # fmt: skip

    def up(
        self, parts: Sequence[str] = PARTS, report: Callable[[str], None] = print, *, spark_cluster: bool = False
    ) -> None:
        """Start the parts that do not run, and return when they are ready.

        Running parts are not touched, and crashed ones are started again. After an interruption or an error, the next
        call continues. Only one `up` or `down` runs per home; a second one waits.

        Args:
            parts: names out of `PARTS`. Airflow includes PostgreSQL and Spark, which it needs.
            report: called with each line of progress: `starting` or `runs`, then `is ready`.
            spark_cluster: Spark runs its tasks on a cluster of this home, until `down`.

        Raises:
            StackError: a part could not be started. The message names the reason and the log.
        """
        if unknown := set(parts) - set(PARTS):
            raise StackError(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        binaries()  # Without the extra that brings every server, none is started.
        # Airflow keeps its own tables in PostgreSQL, and its tasks' jobs run on Spark's server.
        needed = {*parts, "postgres", "spark"} if "airflow" in parts else set(parts)
        with self.home.lock(report):
            runs = self.spark.pid is not None or any(self.airflow.pids.values())
            if spark_cluster and runs and not self.spark.cluster.started:
                raise StackError(
                    "Spark or Airflow already runs without a cluster; run `epochline down`, then `epochline up"
                    " --spark-cluster`"
                )
            credentials.ensure(self.home)
            crashed = [name for part in sorted(needed) for name in self._crashed(getattr(self, part))]
            before = self._ports.known()
            moved = [
                name for name, port in self._ports.settle(self._running()).items() if before.get(name, port) != port
            ]
            begun = time.monotonic()

            def ready(part: Part) -> None:
                part.wait()
                if part is self.postgres:
                    # Imported here, because `status` and `down` do not need SQLAlchemy.
                    from epochline.postgres.ledger.migrate import upgrade

                    upgrade(self.postgres.dsn())
                    self.postgres.arrange_roles()
                seconds = time.monotonic() - begun
                report(f"{part.name:<9} {part.version()} is ready on port {part.port} ({seconds:.0f} s)")

            def begins(part: Part, note: str = "") -> None:
                runs = all(part.pids.values())
                report(f"{part.name:<9} {'runs' if runs else 'starting'} on port {part.port}{'' if runs else note}")

            if "kafka" in needed:  # first, so that it starts while PostgreSQL does
                begins(self.kafka)
                self.kafka.start(lambda text: report(f"kafka     {text}"))
            if "spark" in needed:
                begins(self.spark)
                self.spark.start(on_cluster=spark_cluster)
            if "postgres" in needed:
                begins(self.postgres)
                self.postgres.start()
                ready(self.postgres)
            if "airflow" in needed:
                begins(self.airflow, " (the first time takes a minute)")
                self.airflow.start()
            for part in ("kafka", "spark", "airflow"):
                if part in needed:
                    ready(getattr(self, part))
            for name in crashed:
                report(f"mended: {name} had crashed, and runs again")
            for name in moved:
                report(
                    f"mended: another program has port {before[name]} of {name}, which has {self._ports.get(name)} now"
                )

    def down(self, wipe: bool = False, report: Callable[[str], None] = lambda _line: None) -> None:
        """Stop the servers of this stack. Its data stays unless `wipe` is set."""
        if not self.home.exists():
            report(f"there is no stack in {self.home}")
            return
        with self.home.lock(report):
            # Airflow first, because its tasks write to the others.
            for part in (self.airflow, self.spark, self.kafka, self.postgres):
                report(f"{part.name:<9} {'stopped' if part.stop() else 'was not running'}")
            if wipe:
                self.home.wipe()
                report(f"deleted {self.home}")

    def status(self) -> StackStatus:
        """The state of each part. Takes no lock and changes nothing; the home may not exist yet."""
        has_ports = bool(self._ports.known())
        return StackStatus(
            home=self.home.root,
            secrets_file=self.home.secrets,
            postgres=PostgresStatus(
                **self._part(self.postgres),
                dsn=self.postgres.dsn(with_password=False) if has_ports else None,
                service_file=self.postgres.service_file,
                password_file=self.postgres.password_file,
            ),
            kafka=KafkaStatus(
                **self._part(self.kafka), bootstrap_servers=self.kafka.bootstrap_servers if has_ports else None
            ),
            spark=SparkStatus(
                **self._part(self.spark),
                address=self.spark.address if has_ports else None,
                master=self.spark.cluster.master if self.spark.cluster.started else None,
            ),
            airflow=AirflowStatus(
                **self._part(self.airflow),
                url=self.airflow.url if has_ports else None,
                password_file=self.airflow.password_file,
                dags_folder=self.airflow.dags_folder,
            ),
        )

    def _part(self, part: Part) -> dict[str, Any]:
        pids = part.pids
        state, detail = State.STOPPED, ""
        crashed = self._crashed(part)
        if crashed:
            state, detail = State.CRASHED, f"{', '.join(crashed)} crashed; run `epochline up` to start it again"
        elif all(pids.values()):
            wrong = part.health()
            state, detail = (State.RUNNING, "") if wrong is None else (State.UNREADY, wrong)
        elif any(pids.values()):
            state, detail = State.UNREADY, "some of its processes were not started; run `epochline up`"
        return {
            "state": state,
            "detail": detail,
            "version": _version(part),
            "port": self._ports.known().get(part.name),
            "pids": pids,
            "logs": [daemon.log for daemon in part.daemons.values()],
        }

    @staticmethod
    def _crashed(part: Part) -> list[str]:
        return [name for name, daemon in part.daemons.items() if daemon.crashed]

    def _running(self) -> set[str]:
        running = {part.name for part in (self.postgres, self.kafka, self.spark) if part.pid is not None}
        if self.kafka.pid is not None:
            running.add("kafka_controller")
        if self.spark.cluster.running:
            running.add("spark_master")
        if self.airflow.pids["api-server"] is not None:
            running.add(self.airflow.name)
        elif any(self.airflow.pids.values()):
            running.add("airflow's other processes")  # they are configured with the ports as well
        return running


def _version(part: Part) -> str:
    try:
        return part.version()
    except (StackError, PackageNotFoundError):
        return "not installed"
