"""What `epochline status` shows, without passwords."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, computed_field


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
