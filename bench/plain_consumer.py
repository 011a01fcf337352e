"""One Python process that takes JSON records from a topic into a table: librdkafka, ``json``, COPY.

Offsets and rows are in one transaction, and nothing else: no quarantine, no counts, no way back. ``python -m
bench.plain_consumer FILE`` runs it in a process of its own; FILE is what `PlainConsumer.stored` wrote.
"""

import argparse
import csv
import io
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg2
from confluent_kafka import Consumer, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConsumer:
    """From a topic into a table; the name of the table is not quoted."""

    dsn: str = field(repr=False)
    kafka: Mapping[str, str]
    topic: str
    table: str
    columns: Mapping[str, str]

    def make(self) -> None:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(
                f'CREATE TABLE {self.table} ({columns}, "partition" int, "offset" bigint);'
                f'CREATE TABLE {self.table}_offsets ("partition" int PRIMARY KEY, next_offset bigint)'
            )

    def consume(self, ends: Mapping[int, int]) -> None:
        """Take the records from where the last call ended up to an offset of each partition."""
        # Without the last setting librdkafka pauses for up to a second whenever it holds enough.
        settings = {**self.kafka, "group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f'SELECT "partition", next_offset FROM {self.table}_offsets')  # noqa: S608 - a name of ours
            at = dict.fromkeys(ends, 0) | dict(cursor.fetchall())
            with closing(Consumer(settings)) as consumer:
                consumer.assign([TopicPartition(self.topic, partition, offset) for partition, offset in at.items()])
                while at != ends:
                    text = io.StringIO()
                    rows = csv.writer(text)
                    for message in consumer.consume(10_000, timeout=1):
                        record = json.loads(message.value() or b"")
                        partition, offset = message.partition() or 0, message.offset() or 0
                        rows.writerow([*record.values(), partition, offset])
                        at[partition] = offset + 1
                    text.seek(0)
                    cursor.copy_expert(f"COPY {self.table} FROM STDIN WITH (FORMAT csv)", text)
            for partition, offset in at.items():
                cursor.execute(
                    f'INSERT INTO {self.table}_offsets VALUES (%s, %s) ON CONFLICT ("partition")'  # noqa: S608
                    " DO UPDATE SET next_offset = excluded.next_offset",
                    (partition, offset),
                )

    def stored(self, path: Path, ends: Mapping[int, int]) -> Path:
        """Write what a process of its own needs."""
        path.touch(mode=0o600)
        path.write_text(json.dumps({"consumer": asdict(self), "ends": list(ends.items())}))
        return path


def main() -> None:
    """Take the records that the file names."""
    parser = argparse.ArgumentParser(prog="python -m bench.plain_consumer", description=__doc__)
    parser.add_argument("file", type=Path, help="what PlainConsumer.stored wrote")
    given = json.loads(parser.parse_args().file.read_text())
    PlainConsumer(**given["consumer"]).consume(dict(given["ends"]))


if __name__ == "__main__":
    main()
