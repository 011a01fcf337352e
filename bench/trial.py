"""What the seal costs where a target has rules: one that is looked at in staging, and those that only a trial shows.

In each round every table takes one epoch of the same rows, one table after another, so that what slows the machine
slows all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pyarrow as pa

from bench.report import measured_by, write_section
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.arrow.cast.source import SOURCE_SCHEMA
from epochline.coordinator import LEASE, begin, commit, plan, seal
from epochline.postgres.ledger.parts import end_job
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Run
from epochline.spark.attempt_plan import read_plan
from epochline.spark.connection import transaction
from epochline.spark.part_rows import one_pass_order
from epochline.spark.staging import StagingWriter, write_manifests
from epochline.testing import FakeKafka

ROWS, ROUNDS, AT_ONCE = 100_000, 7, 10_000
NO_RULE = "no rule"
RULES = {
    NO_RULE: "SELECT 1",
    "a check, looked at in staging": "ALTER TABLE {} ADD CHECK (v >= 0)",
    "a further unique index, tried": "CREATE UNIQUE INDEX ON {} (id)",
    "a foreign key, tried": "ALTER TABLE {} ADD FOREIGN KEY (v) REFERENCES public.kinds",
}
"""By name, what is done to an append table of two columns and the lineage."""


class Ruled:
    """A pipeline into a table with one rule."""

    def __init__(self, name: str, rule: str, dsn: str, rows: int) -> None:
        self._dsn, self._rows = dsn, rows
        columns = {"id": "bigint", "v": "integer"}
        self._pipeline = Pipeline(
            name=name, source=KafkaSource(topics=name, records_per_epoch=rows), parse=Json(columns=columns),
            sinks=PostgresTable(table=name, columns=columns), bad_records="quarantine",
        )  # fmt: skip
        self._kafka = FakeKafka()
        self._kafka.produce(name, 0, 0)
        self._ledger = PostgresLedger(dsn)
        with self._ledger.transaction() as tx:
            tx.targets.create(self._pipeline)
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(rule.format(f"public.{name}"))

    def _batches(self, start: int, until: int) -> Iterator[pa.RecordBatch]:
        for first in range(start, until, AT_ONCE):
            rows = [
                {
                    "topic": self._pipeline.name, "partition": 0, "offset": offset, "timestamp_type": 0,
                    "value": b'{"id": %d, "v": %d}' % (offset, offset % 100),
                }
                for offset in range(first, min(first + AT_ONCE, until))
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)

    def epoch(self, number: int) -> tuple[float, float]:
        """Seconds of the seal and of the commit of one epoch."""
        name = self._pipeline.name
        self._kafka.produce(name, 0, self._rows)
        run = Run(dag_id="bench", run_id=str(number), host="here")
        planned = plan(self._ledger, self._kafka, self._pipeline, run)
        assert planned.epoch is not None
        ticket = begin(self._ledger, name, planned.epoch.epoch_id, run, lease=LEASE)
        assert ticket is not None
        ticket = read_plan(self._dsn, name, ticket.epoch_id, ticket.attempt).ticket
        writer = StagingWriter(one_pass_order(self._pipeline.spec, ticket, self._dsn))
        (only,) = planned.ranges
        write_manifests([writer], [writer.write(self._batches(only.range.start, only.range.until))])
        with transaction(self._dsn, ticket.application_name) as session, session.cursor() as cursor:
            end_job(cursor, ticket.attempt_id)
        begun = time.monotonic()
        seal(self._ledger, self._kafka, ticket, run)
        sealed = time.monotonic()
        commit(self._ledger, self._kafka, name, ticket.epoch_id)
        return sealed - begun, time.monotonic() - sealed


def measured(rows: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of seal and commit per round of each rule, after one round that is not counted."""
    times: dict[str, list[tuple[float, float]]] = {rule: [] for rule in RULES}
    with servers("postgres") as stack:
        dsn = stack.postgres.dsn()
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE public.kinds (v integer PRIMARY KEY)")
            cursor.execute("INSERT INTO public.kinds SELECT generate_series(0, 99)")
        ruled = {rule: Ruled(f"ruled_{at}", made, dsn, rows) for at, (rule, made) in enumerate(RULES.items())}
        for number in range(rounds + 1):
            for rule, one in ruled.items():
                times[rule].append(one.epoch(number))
            print(f"round {number} of {rounds}: " + ", ".join(f"{r} {t[-1][0]:.2f} s" for r, t in times.items()))
    return {rule: each[1:] for rule, each in times.items()}


def table_of(times: dict[str, list[tuple[float, float]]], rows: int) -> str:
    """The section for the page."""
    medians = {rule: [statistics.median(column) for column in zip(*each, strict=True)] for rule, each in times.items()}
    base = medians[NO_RULE][0]
    lines = [
        f"Epochs of {rows:,} rows into append tables of two columns; medians of {len(times[NO_RULE])} rounds.",
        measured_by("bench.trial"),
        "",
        "| rule of the table | seal, ratio to no rule | seal, seconds | commit, seconds |",
        "|---|---:|---:|---:|",
    ]
    lines += [f"| {rule} | {s / base:.2f} | {s:.2f} | {c:.2f} |" for rule, (s, c) in medians.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and write it into a page if asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.trial", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of an epoch")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that are counted")
    parser.add_argument("--report", type=Path, metavar="PAGE", help="write the table into this page")
    given = parser.parse_args()
    write_section(given.report, "bench.trial", table_of(measured(given.rows, given.rounds), given.rows))


if __name__ == "__main__":
    main()
