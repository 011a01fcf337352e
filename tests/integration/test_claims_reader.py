"""What a requeue epoch's job reads, without starting Spark: the reader on a real ledger."""

import base64
import json
from datetime import UTC, datetime

import pytest

from epochline.arrow.cast.batches import SOURCE_SCHEMA
from epochline.coordinator import LEASE
from epochline.ports import NewEpoch, Selection
from epochline.protocol.epoch import EpochKind
from epochline.spark.source import TaskReader, claim_reader
from tests.contract.worlds import postgres_world, quarantined, run
from tests.databases import query, set_aside

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def reader(postgres_dsn: str) -> TaskReader:
    """Of an attempt of an epoch that claims two of three quarantined records, of two partitions."""
    world = postgres_world(postgres_dsn)
    quarantined(world)
    headers = json.dumps([["h", base64.b64encode(b"\x00\xff").decode()], ["empty", None]])
    set_aside(postgres_dsn, 4, 1, record_timestamp=AT, key="k", value=None, headers=headers, reason="not JSON")
    query(postgres_dsn, "UPDATE epochline.quarantined_record SET reason = 'other' WHERE \"offset\" = 2")
    with world.ledger.transaction() as tx:
        row = tx.epochs.lock_pipeline("orders")
        targets = tx.targets.inspect(world.pipeline)
        epoch = tx.epochs.insert(
            world.pipeline, row, run("run-2"), NewEpoch(kind=EpochKind.REQUEUE), targets, lease=LEASE, note=None
        )  # fmt: skip
        assert tx.quarantine.claim_records(epoch, Selection(generation=1, reason="not JSON%")) == 2
    ticket = world.begin(epoch.epoch_id, "run-2")
    assert ticket is not None
    return claim_reader(ticket, postgres_dsn)


def test_the_claimed_records_come_as_kafka_gave_them_and_the_same_at_every_try(reader: TaskReader) -> None:
    """INV-3."""
    first, again = ([batch for task in range(reader.tasks) for batch in reader.read(task)] for _ in range(2))

    assert first == again
    assert all(batch.schema.equals(SOURCE_SCHEMA) for batch in first)
    (row,), (other,) = (batch.to_pylist() for batch in first)
    assert (row["topic"], row["partition"], row["offset"], row["value"]) == ("orders", 0, 3, b"x")
    assert other["partition"] == 1
    assert (other["offset"], other["key"], other["value"], other["timestamp"]) == (4, b"k", None, AT)
    assert other["headers"] == [{"key": "h", "value": b"\x00\xff"}, {"key": "empty", "value": None}]
