"""OpenLineage: what a task tells Airflow's provider about its epoch, if the provider is installed.

The provider asks in a fork of the task, which it ends after a time limit. The fork shares the task's connection to its
supervisor, where answers have no address: the answer for a fork that was ended would reach the task. So nothing is
asked here; a task tells what it knows already (ADR 0066).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochline.config.connections import Connection
from epochline.config.kafka import SERVERS
from epochline.declare.pipeline import Pipeline
from epochline.protocol.epoch import Epoch
from epochline.protocol.offsets import PlannedRange

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a connection leads, without its login."""

    host: str
    port: int | None
    database: str
    servers: str
    """Kafka's, as the connection lists them."""

    @property
    def postgres(self) -> str:
        """The namespace of a database's tables."""
        first = _without_login(self.host)
        return f"postgres://{first}" if re.search(r"[^\[:]:\d+$", first) else f"postgres://{first}:{self.port or 5432}"

    @property
    def kafka(self) -> str:
        """The namespace of topics: the first of the brokers."""
        first = self.servers.split(",")[0].strip().rpartition("://")[2]
        return f"kafka://{_without_login(first) or f'{_without_login(self.host)}:{self.port or 9092}'}"


def _without_login(host: str) -> str:
    """The first of several hosts. A login does not belong there; if it holds one, no other place shows it."""
    first = host.split(",")[0].rpartition("@")[2]
    return f"[{first}]" if first.count(":") > 1 and not first.startswith("[") else first


ADDRESSES: dict[str, Address] = {}
"""Addresses of the connections that this process has looked up, by id."""


def note_address(connection_id: str, at: Connection) -> None:
    """Keep where a connection leads, for `ADDRESSES`."""
    servers = at.extra.get(SERVERS, "")
    ADDRESSES[connection_id] = Address(host=at.host, port=at.port, database=at.schema, servers=servers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a task made visible in one sink."""

    rows: int | None = None
    """None where an earlier try committed them."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names and types of a table's columns."""
    epochs: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a task knows of its epoch."""

    epoch: Epoch | None = None
    ranges: Sequence[PlannedRange] | None = None
    """None if the task has not read them."""
    written: Mapping[str, Written] = field(default_factory=dict)
    """By the name of a sink, as receipts name it."""


class TellsLineage:
    """The methods by which the provider asks a task. They raise nothing, and reach no server."""

    pipeline: Pipeline
    known: Known | None = None
    """Set by the task while it works."""

    def get_openlineage_facets_on_start(self) -> Any:
        """The pipeline, and the id of the epoch if ``plan_epoch`` gave one."""
        return self._told()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The epoch as the task left it, what it read, and what it made visible."""
        return self._told()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """The epoch as far as the task came."""
        return self._told()

    def _told(self) -> Any:
        try:
            from epochline.airflow.lineage_events import operator_lineage

            return operator_lineage(self.pipeline, getattr(self, "epoch_id", None), self.known)
        except Exception as error:
            log.warning(
                "lineage.not_told pipeline=%s reason=%s: %s; the epoch is not affected",
                self.pipeline.name, type(error).__name__, error,
            )  # fmt: skip
            return None
