"""The page that says what made a row of a target. Only a user who may edit the DAG's runs sees it: a key is content.

The ledger and the row answer first. Kafka is asked where the user wants the bytes, and for one record alone (ADR 0067).
"""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict

from epochline.airflow.connections import adapters
from epochline.airflow.pages.access import read
from epochline.airflow.pages.quarantine import WITHOUT_NUL, Bytes, bytes_of
from epochline.airflow.reading import Snapshot
from epochline.declare.source import KafkaSource
from epochline.errors import EpochlineError
from epochline.protocol.why import Content, Record, Why

MOST_ROWS = 20
_PATIENCE_SECONDS = 5


class WhyQuery(BaseModel):
    """The form: a table, a key with a column on each line, and whether to ask Kafka for the first record's bytes."""

    model_config = ConfigDict(extra="forbid")

    table: Annotated[str, Query(max_length=200, pattern=WITHOUT_NUL)] = ""
    key: Annotated[str, Query(max_length=10_000, pattern=WITHOUT_NUL)] = ""
    bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyView:
    """The answer, or the ``problem``. ``said`` is the reason why there are no bytes where they were asked for."""

    why: Why | None = None
    problem: str | None = None
    parts: tuple[Bytes, ...] = ()
    headers: tuple[Bytes, ...] = ()
    said: str | None = None


def why_view(pipeline: str, asked: WhyQuery) -> WhyView:
    """What made the rows that a user asks for, by an inspector's login."""
    if not asked.table or not asked.key:
        return WhyView()

    def look(ledger: Snapshot) -> Why:
        return ledger.explain(asked.table, asked.key.splitlines(), MOST_ROWS, pipeline)

    try:
        why: Why = read(look, inspect=True)
    except EpochlineError as error:
        return WhyView(problem=str(error))
    records = [why.deletion, *(row.record for row in why.rows)]
    first = next((record for record in records if record is not None), None)
    return WhyView(why=why, **(_bytes(why, first) if asked.bytes and first is not None else {}))


def _bytes(why: Why, record: Record) -> dict[str, Any]:
    kafka = why.kafka_of(record.topic)
    if kafka is None:
        return {"said": "The record is not in Kafka; the command line reads sources of your own."}
    connection, topic = kafka
    try:
        source = KafkaSource(topics=topic, connection=connection)
        content = adapters().record_again(source, topic, record, _PATIENCE_SECONDS)
    except EpochlineError as error:
        return {"said": str(error)}
    if not isinstance(content, Content):
        return {"said": "; ".join(filter(None, [content, record.since_when]))}
    return {
        "parts": (bytes_of("key", content.key), bytes_of("value", content.value)),
        "headers": tuple(bytes_of(name, value) for name, value in content.headers),
    }
