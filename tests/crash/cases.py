"""A database and a topic for the tests that kill and stop plain processes."""

import contextlib
import itertools
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochline.declare.inputs import DeclaredSource
from epochline.errors import SourceUnavailableError
from epochline.kafka.source import KafkaOffsets
from epochline.protocol.mirror import MirroredOffset
from epochline.protocol.planning import SourceView
from tests.crash.line import Line
from tests.crash.reliability import Recovery
from tests.crash.servers import Server
from tests.crash.steps import Case
from tests.integration.kafka_topics import make_topic
from tests.waiting import wait_for

_numbers = itertools.count(1)
slow = partial(pytest.param, marks=pytest.mark.slow)

NewCase = Callable[..., Case]


class AskedOnce(KafkaOffsets):
    """Kafka as it answered the first time: the topic gets no more records, and its mirror is not what is tested here."""

    def __init__(self, line: Line) -> None:
        super().__init__({"bootstrap.servers": line.bootstrap})
        self._view = super().look(line.pipeline.source)

    def look(self, source: DeclaredSource) -> SourceView:
        return self._view

    def mirrored(self, group: str) -> Mapping[tuple[str, int], MirroredOffset]:
        return {}

    def mirror(self, *_: object, **_options: object) -> None:
        raise SourceUnavailableError("nothing is mirrored here, so that nothing is evidence")

    def group_retention(self) -> None:
        """The offsets that tasks in other processes mirrored are taken for expired."""


KafkaNow = Callable[[], AskedOnce]


@dataclass(frozen=True)
class SharedRecords:
    """A topic with some records, a bad one among them, read from Kafka once; and Kafka under its first leader."""

    line: Line
    file: str
    former: AskedOnce


@pytest.fixture(scope="session")
def shared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> SharedRecords:
    line = Line(server.new_database(), server.kafka.bootstrap_servers)
    line.some()
    path = tmp_path_factory.mktemp("records") / "records"
    keep_records(line, path)
    former = AskedOnce(line)
    change_leader(server, line)
    return SharedRecords(line, str(path), former)


@pytest.fixture(scope="session")
def kafka_now(server: Server, shared: SharedRecords) -> KafkaNow:
    """Kafka as it is since the broker's last start: a task in another process sees the same."""
    asked = cache(lambda _broker: AskedOnce(shared.line))
    return lambda: asked(server.kafka.pid)


def keep_records(line: Line, path: Path) -> None:
    ranges = line.to_planned("run").ranges
    batches = {one.tp.partition: pa.concat_batches(list(line.read(one))) for one in ranges}  # type: ignore[attr-defined]
    path.write_bytes(pickle.dumps(batches))


def change_leader(server: Server, line: Line) -> None:
    """Give every partition another leader epoch: what was read until now was read under a former one (I11)."""

    def leader_epochs() -> list[int | None]:
        with contextlib.suppress(SourceUnavailableError):
            return [one.leader_epoch for one in line.source.look(line.pipeline.source).partitions]
        return []

    before = leader_epochs()
    assert before
    server.restart_broker()
    wait_for(
        "every partition has a new leader",
        lambda: all(now != former for now, former in zip(leader_epochs() or before, before, strict=True)),
    )


@pytest.fixture(scope="session")
def clean_database(request: pytest.FixtureRequest, server: Server) -> Callable[[], str]:
    """A database that cases share; another one after a case that failed, which may have left staging and sessions."""
    made = cache(lambda _failed: server.new_database())
    return lambda: made(request.session.testsfailed)


@pytest.fixture
def new_case(
    fired: Path, shared: SharedRecords, kafka_now: KafkaNow, clean_database: Callable[[], str], recovery: Recovery
) -> NewCase:
    """Makes a pipeline of its own on the shared topic, and brings it to where a case begins."""

    def make(before: Callable[[Case], object] = lambda _: None, **options: Any) -> Case:
        line = Case(
            fired, bootstrap=shared.line.bootstrap, topic=shared.line.topic, records=shared.file,
            name=f"case_{next(_numbers)}", **{"dsn": clean_database(), **options},
        )  # fmt: skip
        line.produced, line.source, line.former_source = shared.line.produced, kafka_now(), shared.former
        line.recovery = recovery
        for topic in line.pipeline.topics:
            make_topic(line.bootstrap, topic.topic, 2)
        line.create()
        before(line)
        return line

    return make
