"""How fast an epoch's outbox reaches its topic: by librdkafka, as it is sent, and by kafka-python, side by side.

Both read the same rows from PostgreSQL and send them in one Kafka transaction. librdkafka's time is that of the
product's whole commit of the sink, from the fence to the answer of Kafka's commit; kafka-python's leaves out the look
at the marker.
"""

import statistics
import time
import uuid
from collections.abc import Mapping
from contextlib import closing

import psycopg2
from kafka import KafkaAdminClient, KafkaProducer

from bench.report import measured_by, run
from bench.servers import servers
from epochline import KafkaSource, KafkaTopic, Pipeline, Text
from epochline.kafka.preflight import check_topic
from epochline.postgres.ledger.outbox import rows_of
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.sink import Committable, SinkAttempt
from epochline.sinks.topic import TopicSink

ROWS = 100_000
ROUNDS = 5
SENDERS = ("librdkafka", "kafka-python")
_OUT = KafkaTopic(topic="bench-publish", value=Text(), key="value")
_EPOCH = 1


class Epoch:
    """A committed epoch whose outbox is full, of a pipeline of its own: nobody published it before."""

    def __init__(self, number: int, rows: int, ledger: PostgresLedger, dsn: str) -> None:
        self._ledger = ledger
        self._rows = rows
        self._pipeline = Pipeline(
            name=f"bench-publish-{number}", source=KafkaSource(topics="bench"), parse=Text(), sinks=_OUT
        )
        (self._outbox,) = self._pipeline.outboxes
        with ledger.transaction() as tx:
            tx.targets.create(self._pipeline)
        schema, table = self._outbox.table.split(".")
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(
                f'INSERT INTO "{schema}"."{table}"'  # noqa: S608 - a name of ours
                " (key, value, headers, partition, _topic, _partition, _offset, _row, _epoch)"
                " SELECT convert_to(n::text, 'UTF8'), convert_to(rpad('line ' || n, 100, '.'), 'UTF8'), NULL, NULL,"
                " 'bench', 0, n, 0, %s FROM generate_series(1, %s) n",
                (_EPOCH, rows),
            )
            cursor.execute(f'VACUUM (ANALYZE) "{schema}"."{table}"')

    def by_librdkafka(self, kafka: Mapping[str, str]) -> None:
        """As the product publishes."""
        attempt = SinkAttempt(
            pipeline=self._pipeline.name, generation=1, epoch_id=_EPOCH, attempt=1, token=str(uuid.uuid4())
        )
        sink = TopicSink(self._pipeline.name, self._outbox, lambda: kafka, self._ledger.connection)
        sink.commit(Committable(attempt=attempt, rows=self._rows, body={}))

    def by_kafka_python(self, kafka: Mapping[str, str]) -> None:
        """As kafka-python's transactional producer would."""
        producer = KafkaProducer(
            bootstrap_servers=kafka["bootstrap.servers"], acks="all", linger_ms=5,
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
    times: dict[str, list[float]] = {sender: [] for sender in SENDERS}
    with servers("postgres", "kafka") as stack:
        kafka = {"bootstrap.servers": stack.kafka.bootstrap_servers}
        with closing(KafkaAdminClient(bootstrap_servers=stack.kafka.bootstrap_servers)) as admin:
            admin.create_topics({_OUT.topic: {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True)
        check_topic(kafka, _OUT)
        ledger = PostgresLedger(stack.postgres.dsn())
        for number in range(rounds + 1):
            for at, sender in enumerate(SENDERS):
                epoch = Epoch(number * len(SENDERS) + at, rows, ledger, stack.postgres.dsn())
                send = epoch.by_librdkafka if sender == "librdkafka" else epoch.by_kafka_python
                begun = time.monotonic()
                send(kafka)
                times[sender].append(time.monotonic() - begun)
            print(f"round {number} of {rounds}: " + ", ".join(f"{s} {t[-1]:.1f} s" for s, t in times.items()))
    return {sender: seconds[1:] for sender, seconds in times.items()}


def rendered(times: Mapping[str, list[float]], rows: int, rounds: int) -> str:
    """The table, as ratios to what the product sends by."""
    first = statistics.median(times[SENDERS[0]])
    lines = [
        f"One epoch with {rows:,} outbox rows of 100 bytes, in one transaction; medians of {rounds} rounds.",
        measured_by("bench.publish"),
        "",
        f"| client | time, ratio to {SENDERS[0]} | seconds, median | slowest | rows per second |",
        "|---|---:|---:|---:|---:|",
    ]
    for sender, seconds in times.items():
        median = statistics.median(seconds)
        lines.append(f"| {sender} | {median / first:.2f} | {median:.2f} | {max(seconds):.2f} | {rows / median:,.0f} |")
    return "\n".join(lines)


def section(rows: int, rounds: int) -> str:
    """Measure, and render the table."""
    return rendered(measured(rows, rounds), rows, rounds)


if __name__ == "__main__":
    run(
        "bench.publish",
        __doc__,
        section,
        rows=(ROWS, "outbox rows of an epoch"),
        rounds=(ROUNDS, "epochs sent by each client"),
    )
