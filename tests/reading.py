"""What tests read: ranges of a topic, as the batches that a parse is given, and the rows that lie in a sink's folder."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from epochline.arrow.cast.batches import SOURCE_SCHEMA, record_batch
from epochline.errors import SourceUnavailableError
from epochline.kafka.records import RecordReader
from epochline.protocol.offsets import PlannedRange, TopicPartition
from epochline.sinks.file_manifest import CommittedEpoch, committed_files


def of_product(bootstrap: str, planned: PlannedRange) -> Iterator[pa.RecordBatch]:
    """The committed records of a range in small batches, as the product's client reads them."""
    tp, settings = planned.tp, {"bootstrap.servers": bootstrap}
    with RecordReader(settings, records=8).session() as session:
        for columns in session.read(tp.topic, tp.partition, planned.range):
            yield record_batch(tp.topic, tp.partition, columns)


def read_range(bootstrap: str, planned: PlannedRange, *, batch: int, patience: float) -> Iterator[pa.RecordBatch]:
    """The committed records of a range.

    Args:
        bootstrap: the broker.
        planned: what to read.
        batch: most records in a batch.
        patience: seconds without a record after which it gives up, as a consumer's poll does.

    Raises:
        SourceUnavailableError: no record came for so long.
    """
    key = KafkaPartition(planned.tp.topic, planned.tp.partition)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", group_id=None, enable_auto_commit=False
    )
    try:
        consumer.assign([key])
        consumer.seek(key, planned.range.start)
        deadline = time.monotonic() + patience
        while consumer.position(key) < planned.range.until:
            polled = consumer.poll(timeout_ms=200, max_records=batch).get(key, [])
            records = [record for record in polled if record.offset < planned.range.until]
            if records:
                yield batch_of(records)
            if polled:
                deadline = time.monotonic() + patience
            elif time.monotonic() > deadline:
                raise SourceUnavailableError(f"{planned}: no record for {patience:.0f} s")
    finally:
        consumer.close()


def rows_of_files(epoch: CommittedEpoch, form: Any = "parquet") -> list[dict[str, Any]]:
    """The rows of an epoch in files, read as the documentation says. The stubs know fewer formats than ``dataset``."""
    if not epoch.files:
        return []
    store, _ = fsspec.url_to_fs(epoch.files[0])
    paths = [fsspec.url_to_fs(file)[1] for file in epoch.files]
    return list(pyarrow.dataset.dataset(paths, format=form, filesystem=store).to_table().to_pylist())


def rows_in_folder(path: str, form: Any = "parquet") -> list[dict[str, Any]]:
    """The rows that a reader is given who follows the manifest of a folder."""
    return [row for epoch in committed_files(path) for row in rows_of_files(epoch, form)]


def source_batch(
    tp: TopicPartition, offsets: Iterable[int], values: Iterable[bytes | None], **more: Iterable[Any]
) -> pa.RecordBatch:
    """Records of a partition at their offsets, as a parse is given them; ``more`` gives other columns by name."""
    same = {"topic": tp.topic, "partition": tp.partition, "timestamp_type": 0}
    names = ("offset", "value", *more)
    rows = [same | dict(zip(names, row, strict=True)) for row in zip(offsets, values, *more.values(), strict=True)]
    return pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)


def range_batch(one: PlannedRange, records: Sequence[Any]) -> pa.RecordBatch:
    """The records of a range, out of all values of its partition: bytes, or what JSON makes of them."""
    offsets = range(one.range.start, one.range.until)
    values = [records[at] if isinstance(records[at], bytes) else json.dumps(records[at]).encode() for at in offsets]
    return source_batch(one.tp, offsets, values)


def batch_of(records: Sequence[Any]) -> pa.RecordBatch:
    """Records of kafka-python as a batch of the source's schema, without headers."""
    same = ("topic", "partition", "offset", "timestamp_type", "key", "value")
    columns = {name: [getattr(one, name) for one in records] for name in same}
    columns |= {"timestamp": [one.timestamp * 1000 for one in records], "headers": [[] for _ in records]}
    return pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
