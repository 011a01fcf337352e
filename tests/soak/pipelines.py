"""The pipelines of a soak, whose tasks are plain processes."""

import pyarrow as pa
import pyarrow.compute as pc

from epochline import KafkaSource, KafkaTopic, Pipeline, PostgresTable, Text

PIPELINES = ("soak_one", "soak_two")
PARTITIONS = 3


def topic_of(name: str) -> str:
    return f"{name}_out"


def key_of(value: str) -> str:
    """The key of a record: by its number, so that each key is of one partition alone, and its numbers rise."""
    return str(int(value.rpartition(" ")[2]) % (4 * PARTITIONS))


def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each line with its key, as `key_of` has it."""
    lines = batch.column("value")
    numbers = pc.cast(pc.replace_substring_regex(lines, ".* ", ""), pa.int64())
    ring = pa.scalar(4 * PARTITIONS, pa.int64())
    keys = pc.subtract(numbers, pc.multiply(pc.divide(numbers, ring), ring))
    return pa.RecordBatch.from_arrays([lines, pc.cast(keys, pa.string())], names=["value", "key"])


def declared(name: str) -> Pipeline:
    """Two tables, so that a snapshot can catch one without the other, and a topic that follows them."""
    return Pipeline(
        name=name,
        source=KafkaSource(topics=name, records_per_epoch=400),
        parse=Text(),
        sinks=[
            PostgresTable(table=name, columns={"value": "text"}),
            PostgresTable(table=f"{name}_again", columns={"value": "text"}),
            KafkaTopic(
                topic=topic_of(name), value=Text(), key="key", columns={"key": "text"},
                select="tests.soak.pipelines:keyed",
            ),
        ],
    )  # fmt: skip
