"""The price of exactly once: whole epochs beside the same work without staging and ledger.

The work beside it is what users write for at-least-once, by the product's own parts: the same read by Spark, the same
parse, casts and COPY, but straight into the target, with a commit per task, and records sent from the tasks. Afterwards
it commits the offsets to its consumer group. A crash repeats rows there. After each round the bench compares every
table with what was produced, and the topics by their ends.
"""

import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark import cloudpickle

from bench.epochs import Bench, Epochs, in_spark, rounds_of
from bench.report import measured_table, ratio, run, spread
from bench.servers import servers
from epochline import Json, KafkaSource, KafkaTopic, Pipeline, PostgresTable
from epochline.arrow.stage.batch_rows import BatchRows
from epochline.arrow.stage.encoding import CopyEncoder
from epochline.declare.specs import PipelineSpec
from epochline.kafka.preflight import check_topic
from epochline.protocol.offsets import OffsetRange, PlannedRange
from epochline.protocol.offsets import TopicPartition as Partition
from epochline.protocol.staging import StagedTable
from epochline.protocol.staging_tables import staged_tables
from epochline.spark.source import read_ranges

RECORDS, ROUNDS, PARTITIONS = 100_000, 5, 2
_PATIENCE_SECONDS = 60
COLUMNS = {"id": "bigint", "who": "text", "amount": "numeric(10,2)"}
FORMS = {"table": "a table", "both": "a table and a topic"}
ONCE, AT_LEAST = "exactly once", "at least once"

Times = Mapping[str, Sequence[float]]
"""By contestant, the seconds of each round."""


def pipeline(form: str) -> Pipeline:
    """A pipeline into a table, and into a topic as well if the form is ``both``."""
    table = PostgresTable(table=f"once_{form}", columns=COLUMNS)
    topic = KafkaTopic(topic=f"bench-price-once-{form}", value=Json(columns=COLUMNS), key="id")
    return Pipeline(
        name=f"bench-price-{form}", source=KafkaSource(topics=f"bench-price-{form}", records_per_epoch=100_000_000),
        parse=Json(columns=COLUMNS), sinks=[table] if form == "table" else [table, topic],
    )  # fmt: skip


@dataclass(frozen=True)
class Straight:
    """What a task needs to write at least once."""

    pipeline: PipelineSpec
    staged: tuple[StagedTable, ...]
    table: str
    topic: str
    dsn: str
    kafka: dict[str, str]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """COPY the rows of a table into it, send those of a topic, and commit at the end."""
        # Imported by the task: the class belongs to a module of C, which is not pickled.
        from confluent_kafka import Producer

        flow = BatchRows(self.pipeline, self.staged)
        producer = Producer({**self.kafka, "linger.ms": 5, "enable.idempotence": True})
        written = 0
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            for batch in batches:
                for sink, rows in flow.process(batch).rows.items():
                    (staged,) = (one for one in self.staged if one.sink == sink)
                    if "value" in rows.schema.names:
                        self._send(producer, rows)
                        continue
                    encoder = CopyEncoder(staged.columns)
                    data = b"".join((encoder.begin(), encoder.encode(rows), encoder.end()))
                    names = ", ".join(staged.columns)
                    cursor.copy_expert(
                        f"COPY {self.table} ({names}) FROM STDIN WITH ({encoder.copy_options})", io.BytesIO(data)
                    )
                    written += rows.num_rows
            producer.flush()
        yield pa.RecordBatch.from_pydict({"rows": pa.array([written], pa.int64())})

    def _send(self, producer: Any, rows: pa.RecordBatch) -> None:
        for key, value in zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True):
            while True:
                try:
                    producer.produce(self.topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)


class AtLeastOnce:
    """The same work as a pipeline's epochs, without staging and ledger."""

    def __init__(self, bench: Bench, form: str) -> None:
        self._bench, self._source = bench, f"bench-price-{form}"
        declared = pipeline(form)
        staged = staged_tables(declared, {table.table: table.columns or {} for table in declared.tables}, 1, 1)
        self._straight = Straight(
            declared.spec, staged, f"straight_{form}", f"bench-price-straight-{form}", bench.dsn, bench.kafka
        )
        columns = ", ".join(f"{name} {kind}" for name, kind in staged[0].columns.items())
        bench.sql(f"CREATE TABLE {self._straight.table} ({columns})")
        self._group = {**bench.kafka, "group.id": self._source, "enable.auto.commit": False}

    def run(self) -> None:
        """Read from the offsets of the group to the end of the topic, write, and commit the offsets."""
        partitions = [TopicPartition(self._source, number) for number in range(PARTITIONS)]
        with closing(Consumer(self._group)) as consumer:
            starts = {one.partition: max(0, one.offset) for one in _committed(consumer, partitions)}
            ends = {one.partition: consumer.get_watermark_offsets(one, timeout=30)[1] for one in partitions}
            ranges = [
                PlannedRange(
                    tp=Partition(topic=self._source, partition=number, topic_id=""),
                    range=OffsetRange(start=starts[number], until=end),
                )
                for number, end in ends.items()
            ]
            read_ranges(self._bench.spark, ranges, self._bench.kafka).mapInArrow(
                self._straight.run, "rows bigint"
            ).collect()
            offsets = [TopicPartition(self._source, number, end) for number, end in ends.items()]
            consumer.commit(offsets=offsets, asynchronous=False)


def measured(records: int, rounds: int) -> tuple[Times, float]:
    """Seconds of every contestant, and how many bytes the outbox holds per record until it is published (N9).

    Raises:
        RuntimeError: a record is missing or doubled, or the outbox holds a published one.
    """
    # Spark's workers do not find this module.
    cloudpickle.register_pickle_by_value(sys.modules[Straight.__module__])
    with servers("postgres", "kafka") as stack, in_spark(stack) as bench:
        contestants: dict[str, Callable[[], object]] = {}
        once: dict[str, Epochs] = {}
        for form, words in FORMS.items():
            topics = (f"bench-price-{form}", f"bench-price-once-{form}", f"bench-price-straight-{form}")
            bench.make(*topics, partitions=PARTITIONS)
            for sent in pipeline(form).topics:
                check_topic(bench.kafka, sent)
            contestants[f"{AT_LEAST}, {words}"] = AtLeastOnce(bench, form).run
            once[form] = Epochs(bench, pipeline(form))
            contestants[f"{ONCE}, {words}"] = once[form].run
        produced = 0

        def produce() -> None:
            nonlocal produced
            for form in FORMS:
                numbers = range(produced, produced + records)
                bench.produce(f"bench-price-{form}", (value(number) for number in numbers), PARTITIONS)
            produced += records

        def check() -> None:
            for table in (f"{kind}_{form}" for form in FORMS for kind in ("once", "straight")):
                bench.check(table, produced)
            sent = _held(bench, "bench-price-straight-both"), _held(bench, "bench-price-once-both")
            # A topic of transactions holds their markers too.
            if sent[0] != produced or not produced < sent[1] < produced + 100 * (rounds + 1):
                raise RuntimeError(f"the topics hold {sent} records, and {produced} were produced")

        times = rounds_of({"produce": produce, **contestants, "check": check}, rounds)
        [(_, left)] = once["both"].outboxes()
        if left:
            raise RuntimeError(f"the outbox still holds {left} rows of published epochs")
        per_record = statistics.median(once["both"].outbox_bytes) / records
    return {name: times[name] for name in contestants}, per_record


def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """The offsets of the consumer's group. A broker that just made its topic of groups has no coordinator yet."""
    for _ in range(_PATIENCE_SECONDS):
        try:
            return consumer.committed(partitions, timeout=30)
        except KafkaException:
            time.sleep(1)
    return consumer.committed(partitions, timeout=30)


def _held(bench: Bench, topic: str) -> int:
    with closing(Consumer({**bench.kafka, "group.id": "bench-price-ends"})) as consumer:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30) for one in range(PARTITIONS)]
    return sum(end for _, end in ends)


def value(number: int) -> bytes:
    """A record of about 60 bytes."""
    amount = f"{number % 100_000 / 100:.2f}"
    return f'{{"id": {number}, "who": "customer-{number % 10_000:06}", "amount": "{amount}"}}'.encode()


def section(records: int, rounds: int) -> str:
    """The table: each contestant beside the same sinks at least once, and beside the table alone."""
    times, per_record = measured(records, rounds)
    rows = []
    for words in FORMS.values():
        for kind in (AT_LEAST, ONCE):
            seconds = times[f"{kind}, {words}"]
            beside = ratio(seconds, times[f"{AT_LEAST}, {words}"])
            alone = ratio(seconds, times[f"{kind}, {FORMS['table']}"])
            rows.append([f"{kind}, {words}", f"{beside:.2f}", f"{alone:.2f}", spread(seconds, 2)])
    headings = [
        "contestant", "time, ratio to at least once into the same sinks", "time, ratio to the table alone",
        "seconds: median, least, most",
    ]  # fmt: skip
    intro = f"{records:,} records of about 60 bytes per round; medians of {rounds} rounds."
    held = f"Between commit and publishing, the outbox holds {per_record:.0f} bytes per record; afterwards it is empty."
    return measured_table("bench.price", intro, headings, rows, "", held)


if __name__ == "__main__":
    run("bench.price", __doc__, section, records=(RECORDS, "records of a round"), rounds=(ROUNDS, "rounds that count"))
