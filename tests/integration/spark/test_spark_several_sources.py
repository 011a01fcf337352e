"""Sources through real Spark: two Kafka clusters with a join (N7, S7), and a source of a user's own."""

import json
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochline import CustomSource, Input, Json, KafkaSource, Pipeline, PostgresTable, Sources, StateTable, Text
from epochline.audit.several import SeveralReaders
from epochline.failpoints import KILLED, NAMED
from epochline.kafka.records import RecordReader
from epochline.kafka.source import KafkaOffsets
from epochline.local.stack import Stack
from epochline.operations import Request
from epochline.protocol.epoch import Counts
from epochline.sources.positions import SourcePositions
from epochline.sources.several import SeveralOffsets
from epochline.spark.credentials import JobCredentials
from tests.commands import Call
from tests.crash.spark_job import LOCAL, StagedFromSeveral, job, log_of
from tests.integration import kafka_topics
from tests.integration.auditing import audited
from tests.integration.guarantee import broken
from tests.integration.spark.conftest import Runs, Servers

PARTITIONS = 2


@dataclass
class Shop:
    """Orders on one cluster and customers on another, in topics of one name, and what was produced."""

    brokers: dict[str, str]
    topic: str
    customers: dict[int, str] = field(default_factory=dict)
    orders: dict[str, tuple[int, str]] = field(default_factory=dict)

    def placed(self, some: Iterable[tuple[str, int, str]]) -> None:
        for order, customer, amount in some:
            self.orders[order] = customer, amount
            self._send("shop", customer, {"order_id": order, "customer_id": customer, "amount": amount})

    def named(self, some: Iterable[tuple[int, str]]) -> None:
        for customer, name in some:
            self.customers[customer] = name
            self._send("crm", customer, {"customer_id": customer, "name": name})

    def _send(self, connection: str, customer: int, value: dict[str, Any]) -> None:
        kafka_topics.produce(
            self.brokers[connection], self.topic, [json.dumps(value).encode()], partition=customer % PARTITIONS
        )

    @property
    def joined(self) -> list[tuple[str, int, str, str]]:
        return sorted(
            (order, customer, self.customers[customer], amount)
            for order, (customer, amount) in self.orders.items()
            if customer in self.customers
        )


Columns = Mapping[str, dict[str, str]]
COLUMNS = {
    "orders": {"order_id": "text", "customer_id": "bigint", "amount": "numeric(12,2)"},
    "customers": {"customer_id": "bigint", "name": "text"},
}


class JoiningRuns(Runs):
    """Runs of the shipped join, or of another transform, with each source on its own cluster."""

    def __init__(self, servers: Servers, shop: Shop, columns: Columns = COLUMNS, **changes: Any) -> None:
        self._topic = shop.topic
        joined = {"order_id": "text", "customer_id": "bigint", "name": "text", "amount": "numeric(12,2)"}
        known = {"customer_id": "bigint", "name": "text", "waiting": "text"}
        fields: dict[str, Any] = {
            "name": servers.name, "source": self._sources(columns), "bad_records": "quarantine",
            "transform": "pipelines.orders_with_customers:join",
            "sinks": PostgresTable(table="examples.orders_with_customers", aggregated=True, columns=joined),
            "state": StateTable(table="examples.customers", key="customer_id", columns=known),
        }  # fmt: skip
        super().__init__(servers, Pipeline(**{**fields, **changes}))
        kafkas = {name: {"bootstrap.servers": one} for name, one in shop.brokers.items()}
        sources = self.pipeline.source
        assert isinstance(sources, Sources)
        offsets = {name: KafkaOffsets(kafkas[one.source.where]) for name, one in sources.inputs.items()}
        self.source = SeveralOffsets(sources, offsets)
        self.credentials = JobCredentials(dsn=servers.database.dsn, kafka={}, kafkas=kafkas)

    def _sources(self, columns: Columns) -> Sources:
        inputs = {
            name: Input(source=KafkaSource(topics=self._topic, connection=one), parse=Json(columns=columns[name]))
            for name, one in (("orders", "shop"), ("customers", "crm"))
        }
        return Sources(inputs=inputs)

    def declare(self, columns: Mapping[str, dict[str, str]]) -> None:
        self.pipeline = self.pipeline.model_copy(update={"source": self._sources(columns)})

    def audited(self) -> list[str]:
        """What an audit finds, which reads both clusters again."""
        readers = {
            name: RecordReader(self.credentials.kafkas[one.source.where]) for name, one in self.pipeline.inputs.items()
        }
        return audited(self.database.dsn, self.name, SeveralReaders(readers))

    @property
    def joined(self) -> list[tuple[Any, ...]]:
        return self.database.query(
            "SELECT order_id, customer_id::int, name, amount::text FROM examples.orders_with_customers ORDER BY 1"
        )


@pytest.fixture
def brokers(kafka_bootstrap: str, second_cluster: Stack) -> dict[str, str]:
    return {"shop": kafka_bootstrap, "crm": second_cluster.kafka.bootstrap_servers}


@pytest.fixture
def shop(brokers: dict[str, str]) -> Shop:
    topic = f"several-{uuid.uuid4().hex[:12]}"
    for one in brokers.values():
        kafka_topics.make_topic(one, topic, PARTITIONS)
    return Shop(brokers, topic)


@pytest.fixture
def runs(servers: Servers, shop: Shop) -> JoiningRuns:
    return JoiningRuns(servers, shop)


def test_a_join_over_two_clusters_is_that_of_everything_produced_although_a_driver_is_killed(
    runs: JoiningRuns, shop: Shop, brokers: dict[str, str], on_servers: Call, tmp_path: Path
) -> None:
    """N7, I1: three epochs; the second one's driver dies by SIGKILL after it has staged, and before the commit."""
    draw = random.Random(20)
    amounts = [f"{draw.randint(1, 99_999) / 100:.2f}" for _ in range(60)]
    shop.named((customer, f"customer {customer}") for customer in range(4))
    # Customers 4 to 7 are not known yet: their orders wait.
    shop.placed((f"o{at:02}", at % 8, amounts[at]) for at in range(20))
    runs.epoch()
    assert runs.joined == shop.joined
    assert 0 < len(shop.joined) < 20

    shop.named((customer, f"customer {customer}") for customer in (4, 5))
    shop.placed((f"o{at:02}", at % 8, amounts[at]) for at in range(20, 40))
    planned, who = runs.planned()
    ticket = runs.attempt(planned, who)
    staged = StagedFromSeveral(name=runs.name, via=runs.database.dsn, kafkas=brokers)
    with job(staged, ticket, tmp_path, LOCAL, **{NAMED: "end.committed:exit"}) as driver:
        assert driver.wait(240) == KILLED, log_of(tmp_path)
    before = runs.joined
    runs.committed(planned, who)
    assert len(runs.joined) > len(before)
    assert runs.joined == shop.joined

    shop.named((customer, f"customer {customer}") for customer in (6, 7))
    shop.placed((f"o{at:02}", at % 8, amounts[at]) for at in range(40, 60))
    runs.epoch()
    assert runs.joined == shop.joined
    assert len(runs.joined) == 60
    assert runs.database.query("SELECT count(*) FROM examples.customers WHERE waiting IS NOT NULL") == [(0,)]
    assert broken(runs.database.query, runs.name, "examples.orders_with_customers") == {}
    # That the records of one row cannot be told from others is no failure of the command.
    [row] = on_servers.json("why", "examples.orders_with_customers", "order_id=o00")["rows"]
    assert row["notes"] == ["The records are not told: several sources make the row."]
    assert runs.audited() == []
    runs.database.query("UPDATE epochline.planned_range SET source_digest = source_digest - 1 WHERE epoch_id = 1")
    assert {found.split(":")[1].strip() for found in runs.audited()} == {"digest"}


def test_a_quarantined_record_of_either_source_is_requeued_through_the_parse_of_its_source(
    servers: Servers, shop: Shop, brokers: dict[str, str], on_ledger: Call
) -> None:
    """INV-9: the topics have one name, and the bad records stand at one offset."""
    strict, mended = ({"customer_id": kind} for kind in ("smallint", "bigint"))
    runs = JoiningRuns(
        servers, shop, columns={"orders": strict, "customers": strict}, transform="side_by_side:rows", state=(),
        sinks=PostgresTable(
            table="side_by_side", aggregated=True, columns={"what": "text", "customer_id": "bigint", "topic": "text"}
        ),
    )  # fmt: skip
    shop.named([(2_000_000, "no smallint"), (2, "ada")])
    shop.placed([("o", 1_000_000, "1.00"), ("p", 4, "1.00")])
    runs.epoch()
    place = 'SELECT topic, partition, "offset" FROM epochline.quarantine WHERE pipeline = %s AND requeued_by IS NULL ORDER BY 1'
    assert runs.database.query(place, runs.name) == [
        (f"customers/{shop.topic}", 0, 0), (f"orders/{shop.topic}", 0, 0),
    ]  # fmt: skip

    shown = on_ledger("quarantine", runs.name, "--show", f"customers/{shop.topic}/0/0")
    assert shown[0] == 0
    assert "no smallint" in shown[1]

    runs.declare(columns={"orders": mended, "customers": mended})
    who = runs.run_of("requeue")
    planned = runs.order("requeue", Request(actor="ada", reason="the parse was mended"), who, everything=True)
    assert runs.committed(planned, who).counts == Counts(read=2, passed=2, skipped=0, quarantined=0)

    assert runs.database.query(place, runs.name) == []
    assert runs.database.query("SELECT what, customer_id::int, topic FROM side_by_side ORDER BY 2") == [
        ("customer", 2, f"customers/{shop.topic}"), ("order", 4, f"orders/{shop.topic}"),
        ("order", 1_000_000, f"orders/{shop.topic}"), ("customer", 2_000_000, f"customers/{shop.topic}"),
    ]  # fmt: skip


class OwnRuns(Runs):
    """Runs of a pipeline that reads no Kafka."""

    def __init__(self, servers: Servers, source: CustomSource) -> None:
        sink = PostgresTable(table="numbers", columns={"value": "text"})
        super().__init__(servers, Pipeline(name=servers.name, source=source, parse=Text(), sinks=sink))
        self.source = SourcePositions(source.spec)
        self.credentials = JobCredentials(dsn=servers.database.dsn, kafka={})

    def assert_whole(self, numbers: int) -> None:
        found = self.database.query("SELECT value::int FROM numbers ORDER BY 1")
        assert [one for (one,) in found] == list(range(1, numbers + 1))
        assert broken(self.database.query, self.name, "numbers") == {}


def test_a_worker_killed_between_emitting_and_remembering_doubles_nothing(servers: Servers, tmp_path: Path) -> None:
    """X15, E8: the position lies in the ledger. Three epochs, and the second one's job is killed while it reads."""
    options, name = {"folder": str(tmp_path)}, "scripted_source:ScriptedSource"
    runs = OwnRuns(servers, CustomSource(source=name, options=options, label="numbers", positions="sparse"))

    def grow(numbers: int) -> None:
        (tmp_path / "positions").write_text("\n".join(str(one) for one in range(numbers)))
        (tmp_path / "end").write_text(str(numbers))

    grow(10)
    runs.epoch()
    grow(25)
    (tmp_path / "killed").write_text("3")  # every try that Spark gives a task
    planned, who = runs.planned()
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        runs.staged(planned, who)
    assert (tmp_path / "killed").read_text() == "0"
    assert runs.database.query("SELECT count(*) FROM numbers") == [(10,)]
    grow(40)
    runs.committed(planned, who)
    runs.epoch()

    runs.assert_whole(40)
