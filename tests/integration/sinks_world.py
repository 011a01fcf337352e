"""Epochs with sinks that follow the commit, on real servers: what is produced, and what consumers see of it."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text
from epochline.kafka.source import KafkaOffsets
from tests.integration.in_process import InProcess, from_kafka
from tests.integration.kafka_topics import make_topic, read_topic
from tests.processes.client import Forked, fork_server

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Seen:
    """One record as a consumer saw it."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def new_topics(bootstrap: str, *, partitions: int = 2, names: Sequence[str] = ("in", "out")) -> list[str]:
    number = f"{os.getpid()}-{next(_numbers)}"
    return [make_topic(bootstrap, f"sinks-{name}-{number}", partitions) for name in names]


@cache
def producer_to(bootstrap: str) -> Producer:
    """The one producer of this process: a new one waits half a second for its id before it sends."""
    # A test may have killed the broker since the last record.
    return Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "reconnect.backoff.max.ms": 100, "log_level": 0}
    )


def produce(bootstrap: str, topic: str, values: Sequence[str | None], *, keys: Sequence[str | None] = ()) -> None:
    """Each value to the partition of its key, or, without keys, to partition i modulo 2."""
    producer = producer_to(bootstrap)
    for at, value in enumerate(values):
        placed: dict[str, Any] = {"key": keys[at]} if keys else {"partition": at % 2}
        producer.produce(topic, value=value, **placed)
    assert producer.flush(30) == 0


def seen(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Seen]:
    """Everything that a consumer of this isolation sees in a topic now, by partition and offset."""
    return [
        Seen(one.partition, one.offset, _text(one.key), _text(one.value), tuple(one.headers))
        for one in read_topic(bootstrap, topic, isolation)
    ]


def values(records: Sequence[Seen]) -> list[str | None]:
    return sorted((one.value for one in records), key=lambda value: (value is not None, value or ""))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


@dataclass
class SinksPipeline:
    """One pipeline from a topic to a table and to the other sinks that are declared."""

    it: InProcess
    bootstrap: str
    source: str
    topics: tuple[str, ...] = ()
    task: str = "tests.integration.sinks_step:take_step"
    """What takes a step in a process of its own."""
    path: tuple[Path, ...] = ()
    """Folders of modules that such a process needs besides those of the tests."""

    def produce(self, *values: str | None, keys: Sequence[str | None] = ()) -> None:
        produce(self.bootstrap, self.source, values, keys=keys)

    def epoch(self, *values: str | None, keys: Sequence[str | None] = ()) -> None:
        """An epoch of these records is committed, and not yet published."""
        self.produce(*values, keys=keys)
        self.it.epoch()

    def seen(self, isolation: str = "read_committed") -> list[Seen]:
        return seen(self.bootstrap, self.topics[0], isolation)

    def receipts(self) -> list[tuple[int, str, str]]:
        return self.it.sql("SELECT epoch_id, sink, state FROM epochline.receipts ORDER BY epoch_id, sink")

    def outbox(self) -> int:
        (box,) = self.it.pipeline.outboxes
        schema, table = box.table.split(".")
        return int(self.it.sql(f'SELECT count(*) FROM "{schema}"."{table}"')[0][0])

    def in_a_process(self, step: str, **environment: str) -> Forked:
        """One step of a use case, ``publish`` or ``epoch``, in a process of its own."""
        given = {"STEP": step, "DSN": self.it.dsn, "PIPELINE": self.it.pipeline.stored(), "BOOTSTRAP": self.bootstrap}
        process: Forked = fork_server.fork(self.task, environment=given | environment, path=self.path)
        return process

    def done(self, step: str, code: int = 0, **environment: str) -> None:
        """A process does the step to its end."""
        process = self.in_a_process(step, **environment)
        out, err = process.communicate()
        assert process.returncode == code, f"{process.returncode} instead of {code}\n{out}\n{err}"

    def killed_at(self, failpoint: str, step: str = "publish", **environment: str) -> None:
        """A process does the step and dies there as by SIGKILL."""
        self.done(step, 137, EPOCHLINE_FAILPOINT=f"{failpoint}:exit", **environment)


def in_process(dsn: str, bootstrap: str, pipeline: Pipeline) -> InProcess:
    settings = {"bootstrap.servers": bootstrap}
    return InProcess(dsn, pipeline, KafkaOffsets(settings), from_kafka(bootstrap), settings)


def new_world(dsn: str, bootstrap: str, *sinks: Any, table: bool = True, **declared: Any) -> SinksPipeline:
    """A pipeline of lines; ``out`` in a sink's topic stands for a topic that is made for this world."""
    topics = new_topics(bootstrap)
    made = [sink.model_copy(update={"topic": topics[1]}) if isinstance(sink, KafkaTopic) else sink for sink in sinks]
    if table:
        made.append(PostgresTable(table="lines", columns={"value": "text"}))
    declared = {"parse": Text(), "sinks": made, **declared}
    pipeline = Pipeline(name=f"sinks-{next(_numbers)}", source=KafkaSource(topics=topics[0]), **declared)
    it = in_process(dsn, bootstrap, pipeline).create()
    return SinksPipeline(it=it, bootstrap=bootstrap, source=topics[0], topics=(topics[1],))
