"""How fast an epoch's outbox reaches its topic: by librdkafka, as it is sent, and by kafka-python, side by side.

Both read the same rows from PostgreSQL and send them in one Kafka transaction. librdkafka's time is that of the
product's whole commit of the sink, from the fence to the answer of Kafka's commit; kafka-python's leaves out the look
at the marker.
"""

import statistics
import uuid
from contextlib import closing
from itertools import count

from kafka import KafkaProducer

from bench.epochs import Bench, rounds_of
from bench.report import measured_table, ratio, run
from bench.servers import servers
from epochline import KafkaSource, KafkaTopic, Pipeline, Text
from epochline.kafka.preflight import check_topic, make_control_topic
from epochline.postgres.ledger.receipts import rows_of
from epochline.protocol.sink import Committable, SinkAttempt
from epochline.sinks.topic import TopicSink
from tests.databases import as_admin, query

ROWS = 100_000
ROUNDS = 5
SENDERS = ("librdkafka", "kafka-python")
_OUT = KafkaTopic(topic="bench-publish", value=Text(), key="value")
_EPOCH = 1


class Epoch:
    """A committed epoch whose outbox is full, of a pipeline of its own: nobody published it before."""

    def __init__(self, number: int, rows: int, bench: Bench) -> None:
        self._ledger, self._kafka, self._rows = bench.ledger, bench.kafka, rows
        self._pipeline = Pipeline(
            name=f"bench-publish-{number}", source=KafkaSource(topics="bench"), parse=Text(), sinks=_OUT
        )
        (self._outbox,) = self._pipeline.outboxes
        with bench.ledger.transaction() as tx:
            tx.targets.create(self._pipeline)
        schema, table = self._outbox.table.split(".")
        query(
            bench.dsn,
            f'INSERT INTO "{schema}"."{table}"'  # noqa: S608 - a name of ours
            " (key, value, headers, partition, _topic, _partition, _offset, _row, _epoch)"
            " SELECT convert_to(n::text, 'UTF8'), convert_to(rpad('line ' || n, 100, '.'), 'UTF8'), NULL, NULL,"
            " 'bench', 0, n, 0, %s FROM generate_series(1, %s) n",
            _EPOCH, rows,
        )  # fmt: skip
        as_admin(bench.dsn, f'VACUUM (ANALYZE) "{schema}"."{table}"')

    def by_librdkafka(self) -> None:
        """As the product publishes."""
        attempt = SinkAttempt(
            pipeline=self._pipeline.name, generation=1, epoch_id=_EPOCH, attempt=1, token=str(uuid.uuid4())
        )
        sink = TopicSink(self._pipeline.name, self._outbox, lambda: self._kafka, self._ledger.connection)
        sink.commit(Committable(attempt=attempt, rows=self._rows, body={}))

    def by_kafka_python(self) -> None:
        """As kafka-python's transactional producer would."""
        producer = KafkaProducer(
            bootstrap_servers=self._kafka["bootstrap.servers"], acks="all", linger_ms=5,
            transactional_id=_OUT.transactional_id(self._pipeline.name), transaction_timeout_ms=900_000,
        )  # fmt: skip
        with closing(producer), self._ledger.connection() as connection:
            producer.init_transactions()
            producer.begin_transaction()
            sent = [
                producer.send(_OUT.topic, key=key, value=value, headers=list(headers), partition=partition)
                for key, value, headers, partition, _ in rows_of(connection, self._outbox, _EPOCH)
            ]
            producer.commit_transaction()
        if len(sent) != self._rows or not all(one.succeeded() for one in sent):
            raise RuntimeError("kafka-python did not send every row")


def measured(rows: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each sender, after one round that is not counted."""
    with servers("postgres", "kafka") as stack:
        bench, numbers = Bench(stack, None), count()
        bench.make(_OUT.topic, partitions=3)
        check_topic(bench.kafka, _OUT)
        make_control_topic(bench.kafka, _OUT)
        epochs: list[Epoch] = []

        def fill() -> None:
            epochs[:] = [Epoch(next(numbers), rows, bench) for _ in SENDERS]

        times = rounds_of(
            {
                "fill": fill,
                "librdkafka": lambda: epochs[0].by_librdkafka(),
                "kafka-python": lambda: epochs[1].by_kafka_python(),
            },
            rounds,
        )
    return {sender: times[sender] for sender in SENDERS}


def section(rows: int, rounds: int) -> str:
    """The table, as ratios to what the product sends by."""
    times = measured(rows, rounds)
    figures = []
    for sender, seconds in times.items():
        took, beside = statistics.median(seconds), ratio(seconds, times[SENDERS[0]])
        figures.append([sender, f"{beside:.2f}", f"{took:.2f}", f"{max(seconds):.2f}", f"{rows / took:,.0f}"])
    headings = ["client", f"time, ratio to {SENDERS[0]}", "seconds, median", "slowest", "rows per second"]
    intro = f"One epoch with {rows:,} outbox rows of 100 bytes, in one transaction; medians of {rounds} rounds."
    return measured_table("bench.publish", intro, headings, figures)


if __name__ == "__main__":
    sizes = {"rows": (ROWS, "outbox rows of an epoch"), "rounds": (ROUNDS, "epochs sent by each client")}
    run("bench.publish", __doc__, section, **sizes)
