"""Change data capture: at every committed epoch the target is the source table, whatever happens on the way."""

import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from epochline import KafkaSource
from epochline.protocol.offsets import PlannedRange
from tests.in_memory.kafka import FakeKafka
from tests.integration.in_process import InProcess
from tests.integration.shop import DECLARED, Order, Record, Shop, orders_in
from tests.reading import source_batch

PARTITIONS = 3
_numbers = itertools.count(1)


class KilledError(Exception):
    """An attempt was killed."""


@dataclass
class Connector:
    """The topic of the connector, and the pipeline of the example."""

    dsn: str
    records: dict[int, list[Record]] = field(default_factory=lambda: {one: [] for one in range(PARTITIONS)})
    kafka: FakeKafka = field(default_factory=FakeKafka)
    killed_after: int = -1
    """Batches of an epoch after which its reader dies; never, if it is negative."""

    def __post_init__(self) -> None:
        name = f"cdc{next(_numbers)}"
        for partition in self.records:
            self.kafka.produce(name, partition, 0)
        self.table = f"{name}_orders"
        (sink,) = DECLARED.sinks
        sinks = (sink.model_copy(update={"table": self.table}),)
        pipeline = DECLARED.model_copy(update={"name": name, "source": KafkaSource(topics=name), "sinks": sinks})
        self.one = InProcess(self.dsn, pipeline, self.kafka, self._read).create()

    def send(self, records: Iterable[Record], partition: int) -> None:
        for record in records:
            self.records[partition].append(record)
            self.kafka.produce(self.one.pipeline.name, partition, 1)

    def _read(self, planned: PlannedRange) -> Iterable[pa.RecordBatch]:
        offsets = range(planned.range.start, planned.range.until)
        for at in range(0, len(offsets), 3):
            if self.killed_after == 0:
                raise KilledError
            self.killed_after -= 1
            chosen = [self.records[planned.tp.partition][offset] for offset in offsets[at : at + 3]]
            keys, contents = zip(*chosen, strict=True)
            moments = [datetime(2024, 1, 1, tzinfo=UTC)] * len(chosen)
            yield source_batch(planned.tp, offsets[at : at + 3], contents, key=keys, timestamp=moments)

    def target(self) -> dict[int, Order]:
        return orders_in(self.one, self.table)

    def customers(self) -> list[str]:
        return [customer for (customer,) in self.one.sql(f"SELECT customer FROM {self.table}")]

    def quarantined(self) -> list[str]:
        found = self.one.sql("SELECT reason FROM epochline.quarantine WHERE pipeline = %s", self.one.pipeline.name)
        return [reason for (reason,) in found]

    def epoch_with_a_kill(self, kill: str, batches: int, **options: Any) -> None:
        """One epoch whose first attempt is killed somewhere, and what follows by itself."""
        before = self.target()
        planned, run = self.one.planned(**options)
        ticket = self.one.attempt(planned, run)
        if kill == "while it writes":
            self.killed_after = batches
            with pytest.raises(KilledError):
                self.one.stage(planned, ticket)
            self.killed_after = -1
            ticket = self.one.attempt(planned, run)
        if kill == "before the seal":
            self.one.stage(planned, ticket)
            ticket = self.one.attempt(planned, run)
        self.one.stage(planned, ticket)
        assert self.target() == before
        self.one.seal(ticket, run)
        assert self.target() == before
        for _ in range(2 if kill == "after the commit" else 1):
            self.one.commit(planned)


KILLS = ("never", "while it writes", "before the seal", "after the commit")


@pytest.mark.parametrize("seed", range(8))
def test_the_target_is_the_source_table_at_every_committed_epoch(dsn: str, seed: int) -> None:
    """Keys move between partitions, the connector repeats itself, attempts are killed."""
    rng = random.Random(seed)
    shop, world = Shop(rng), Connector(dsn)

    for number in range(6):
        for _ in range(rng.randint(1, 25)):
            world.send(shop.change(), rng.randrange(PARTITIONS))
        if rng.random() < 0.6:
            # A connector that was restarted sends its last changes again, in their order.
            elsewhere = rng.randrange(PARTITIONS)
            for change in shop.log[-rng.randint(1, 10) :]:
                world.send(shop.sent(change), elsewhere)
        world.epoch_with_a_kill(KILLS[(seed + number) % len(KILLS)], rng.randrange(2))

        assert world.target() == shop.orders
    assert world.quarantined() == []


@pytest.mark.parametrize("seed", range(8, 12))
def test_where_partitions_lag_behind_each_other_the_newest_change_that_was_read_holds(dsn: str, seed: int) -> None:
    rng = random.Random(seed)
    shop, world = Shop(rng), Connector(dsn)
    changes = {}
    for _ in range(60):
        records, partition = shop.change(), rng.randrange(PARTITIONS)
        changes[partition, len(world.records[partition])] = shop.log[-1]
        world.send(records, partition)

    while True:
        committed = (
            "SELECT partition, max(until_offset) FROM epochline.planned_range r JOIN epochline.epoch e"
            " USING (pipeline, epoch_id) WHERE pipeline = %s AND e.state = 'COMMITTED' GROUP BY partition"
        )
        heads = dict(world.one.sql(committed, world.one.pipeline.name))
        if heads == {one: len(records) for one, records in world.records.items()}:
            break
        read = {place: change for place, change in changes.items() if place[1] < heads.get(place[0], 0)}
        newest: dict[int, tuple[int, int, Order | None, str]] = {}
        for change in sorted(read.values(), key=lambda one: one[0]):
            newest[change[1]] = change
        assert world.target() == {key: change[2] for key, change in newest.items() if change[2] is not None}
        world.epoch_with_a_kill(rng.choice(KILLS), 0, record_limit=rng.randint(1, 20))

    assert world.target() == shop.orders


@pytest.mark.parametrize("seed", range(12, 18))
def test_a_value_that_the_connector_does_not_have_stays_as_it_is(dsn: str, seed: int) -> None:
    """Debezium's placeholder for a large value (field f07): by any division into epochs, killed and sent again."""
    rng = random.Random(seed)
    shop, world = Shop(rng, large=True), Connector(dsn)

    for number in range(5):
        for _ in range(rng.randint(1, 30)):
            records = shop.change()
            world.send(records, shop.log[-1][1] % PARTITIONS)
        for change in shop.log[-rng.randint(0, 10) :]:
            world.send(shop.sent(change), change[1] % PARTITIONS)
        world.epoch_with_a_kill(KILLS[(seed + number) % len(KILLS)], rng.randrange(2))

        assert world.target() == shop.orders
    assert shop.left_out
    assert world.quarantined() == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"op": "t", "source": {"lsn": 1}}, "other than c, r, u and d"),
        ({"before": None}, "not a change of an order"),
        ({"op": "c", "after": None, "source": {"lsn": 1}}, "not a change of an order"),
        ({"op": "d", "before": None, "source": {"lsn": 1}}, "not a change of an order"),
        ({"op": "d", "before": {"id": 1}, "source": {}}, "not a change of an order"),
        ({"op": "u", "after": {"id": 1, "customer": "\ud800", "amount": None, "status": None, "placed_at": None}, "source": {"lsn": 1}}, "not a change of an order"),
        ({"op": "u", "after": {"id": 1, "customer": None, "amount": "much", "status": None, "placed_at": None}, "source": {"lsn": 1}}, "not a change of an order"),
        ({"op": "u", "after": {"id": 1, "customer": None, "amount": "1.001", "status": None, "placed_at": None}, "source": {"lsn": 1}}, "amount"),
        ([], "not a change of an order"),
    ],
)  # fmt: skip
def test_what_is_no_change_is_quarantined_and_the_others_count(dsn: str, value: Any, reason: str) -> None:
    shop, world = Shop(random.Random(2)), Connector(dsn)
    good = shop.change()

    world.send([*good, (None, json.dumps(value).encode())], 0)
    world.one.epoch()

    assert world.target() == shop.orders
    (found,) = world.quarantined()
    assert reason in found


def of_mysql(customer: str, pos: int, file: object, ts_ms: int, operation: str = "u") -> Record:
    after = {"id": 1, "customer": customer, "amount": None, "status": None, "placed_at": None}
    event = {"op": operation, "after": after, "source": {"file": file, "pos": pos, "ts_ms": ts_ms}}
    return None, json.dumps(event).encode()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ((900, "binlog.000001", 2), (4, "binlog.000002", 2)),
        ((40, "binlog.000001", 2), (41, "binlog.000001", 2)),
        ((100, "binlog.000001", 9000, "r"), (200, "binlog.000001", 8000)),
        ((900, "binlog.999999", 2), (4, "binlog.1000000", 2)),
    ],
    ids=["rotated within a millisecond", "one file", "a snapshot", "a digit more"],
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_of_mysql_the_file_and_then_the_position_decide(dsn: str, older: Any, newer: Any, epochs: int) -> None:
    world = Connector(dsn)

    world.send([of_mysql("newer", *newer)], 0)
    if epochs == 2:
        world.one.epoch()
    world.send([of_mysql("older", *older)], 1)
    world.one.epoch()

    assert world.customers() == ["newer"]


@pytest.mark.parametrize("file", ["binlog", "000001", "binlog.", "binlog.²", "binlog." + "9" * 20, None, 1])
def test_of_mysql_a_file_without_a_number_is_quarantined(dsn: str, file: object) -> None:
    world = Connector(dsn)

    world.send([of_mysql("nowhere", 1, file, 1), of_mysql("here", 1, "binlog.000001", 1)], 0)
    world.one.epoch()

    assert world.customers() == ["here"]
    assert len(world.quarantined()) == 1
