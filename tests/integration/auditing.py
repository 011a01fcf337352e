"""Audits in this process, of a pipeline `people`: what they find, and a source that holds nothing any more."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.audit.findings import Difference, EpochResult
from epochline.audit.run import audit
from epochline.operations import Request
from tests.commands import Call
from tests.integration.in_process import InProcess
from tests.integration.kafka_topics import make_topic, produce
from tests.integration.sinks_world import SinksPipeline, in_process


class Findings:
    """Keeps what an audit says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def difference(self, found: Difference) -> None:
        self.said.append(str(found))

    def begin(self, epochs: int, offsets: int) -> None:
        pass

    def advance(self, offsets: int) -> None:
        pass

    def epoch(self, result: EpochResult) -> None:
        pass


class NothingLeft:
    """A source that holds no record any more."""

    def session(self) -> Any:
        return nullcontext()

    def held(self, _: Sequence[str]) -> dict[Any, Any]:
        return {}


def audited(dsn: str, pipeline: str, source: Any, **more: Any) -> list[str]:
    """What an audit finds."""
    audit(dsn, source, pipeline, found := Findings(), **more)
    return found.said


COLUMNS = {"id": "bigint", "name": "text", "price": "numeric", "seen": "timestamptz", "extra": "jsonb", "raw": "json"}
ORDER = Request(actor="ada", reason="the rule was mended")
NEWEST = PostgresTable(table="newest", mode="upsert", key="id", columns=COLUMNS)


@dataclass
class Audited:
    """A world with a pipeline over two partitions, and the command."""

    world: InProcess
    bootstrap: str
    topic: str
    call: Call

    def __post_init__(self) -> None:
        self.sql = self.world.sql

    def produce(self, partition: int, values: Iterable[bytes | None], **more: Any) -> None:
        produce(self.bootstrap, self.topic, values, partition=partition, **more)

    def audit(self, *arguments: object) -> tuple[int, list[tuple[Any, ...]], list[dict[str, Any]]]:
        """Exit code, differences as (where, kind, partition, offset, said), and the epochs."""
        return said_by_audit(self.call, self.topic, *arguments)[:3]


def person(number: int, **changes: Any) -> bytes:
    value = {
        "id": number, "name": f"näme {number}", "price": "1.50", "seen": "2024-02-29T01:02:03Z",
        "extra": {"b": [1, 2.0], "a": None}, "raw": {"z": 1},
    }  # fmt: skip
    return json.dumps({**value, **changes}).encode()


def new_audited(call: Call, dsn: str, bootstrap: str, topic: str, *sinks: PostgresTable, **declared: Any) -> Audited:
    """A pipeline over a new topic of two partitions, with these targets."""
    declared = {"parse": Json(columns=COLUMNS), "bad_records": "quarantine"} | declared
    pipeline = Pipeline(
        # Its own name: the mirror of another test's would be met in Kafka.
        name=topic, source=KafkaSource(topics=topic), sinks=sinks or (PostgresTable(table="people", columns=COLUMNS),),
        **declared,
    )  # fmt: skip
    make_topic(bootstrap, topic, 2)
    return Audited(in_process(dsn, bootstrap, pipeline).create(), bootstrap, topic, call)


Said = tuple[int, list[tuple[Any, ...]], list[dict[str, Any]], dict[str, Any]]


def said_by_audit(call: Call, name: str, *arguments: object, place: str = "partition") -> Said:
    """Exit code, differences as (where, kind, `place`, offset, said), the epochs and the summary of an audit."""
    code, out, err = call("audit", name, "--json", *arguments)
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    found = [line["difference"] for line in lines if "difference" in line]
    shown = [(d["where"], d["kind"], d[place], d["offset"], d["said"]) for d in found]
    return code, shown, [line["epoch"] for line in lines if "epoch" in line], lines[-1]["summary"]


def said_of_sinks(call: Call, world: SinksPipeline, *arguments: object) -> tuple[int, list[tuple[Any, ...]], list[str]]:
    """Exit code, differences and notes of an audit of a world of sinks."""
    code, differences, _, summary = said_by_audit(call, world.it.pipeline.name, *arguments)
    return code, differences, summary["notes"]


NewAudited = Callable[..., Audited]
Audit = Callable[..., tuple[int, list[tuple[Any, ...]], list[str]]]
