"""Which records a Spark job reads, and in which order."""

import itertools
from operator import itemgetter

from psycopg2 import sql

from epochline import KafkaSource, Pipeline, PostgresTable, Text
from tests.integration.spark.conftest import Servers

PLANNED = {0: (0, 700), 1: (150, 900), 3: (899, 900)}
"""By partition, what the ledger has of each topic; partition 2 has records and is not planned."""


def test_a_job_reads_exactly_the_ranges_of_the_ledger_in_the_order_of_topics_and_partitions(servers: Servers) -> None:
    """S7: two topics, declared and planned in another order. Each task reads the ranges from where the last task ends."""
    topics = [servers.topic({partition: [b"x"] * 900 for partition in range(4)}) for _ in range(2)]
    topics.sort(reverse=True)
    pipeline = Pipeline(
        name=servers.name, source=KafkaSource(topics=tuple(topics)), parse=Text(column="line"),
        sinks=PostgresTable(table="public.read", columns={"line": "text"}),
    )  # fmt: skip
    ranges = {(topic, partition): PLANNED[partition] for topic in topics for partition in (3, 1, 0)}
    ticket = servers.database.attempt(pipeline, ranges)

    servers.run_job()

    # A task is a transaction, which appends its rows in the order in which it has read them.
    found = servers.database.query(
        sql.SQL("SELECT xmin::text, _topic, _partition, _offset FROM {} ORDER BY ctid").format(
            sql.Identifier("epochline_staging", ticket.table("public.read").table)
        )
    )
    by_task = [
        [place for _, *place in rows] for _, rows in itertools.groupby(sorted(found, key=itemgetter(0)), itemgetter(0))
    ]
    ledger = [
        [topic, partition, offset] for topic, partition in sorted(ranges) for offset in range(*ranges[topic, partition])
    ]
    assert len(by_task) == 2
    assert [place for task in sorted(by_task) for place in task] == ledger
