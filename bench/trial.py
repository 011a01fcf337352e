"""What the seal costs where a target has rules: one that is looked at in staging, and those that only a trial shows.

In each round every table takes one epoch of the same rows, one table after another, so that what slows the machine
slows all of them.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pyarrow as pa

from bench.report import measured_table, run
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.arrow.cast.batches import SOURCE_SCHEMA
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.spark.part_rows import one_pass_writer
from tests.driver import Driver
from tests.in_memory.kafka import FakeKafka
from tests.job import write_as_spark

ROWS, ROUNDS, AT_ONCE = 100_000, 7, 10_000
NO_RULE = "no rule"
RULES = {
    NO_RULE: "SELECT 1",
    "a check, looked at in staging": "ALTER TABLE {} ADD CHECK (v >= 0)",
    "a further unique index, tried": "CREATE UNIQUE INDEX ON {} ((id + 0))",
    "a foreign key, tried": "ALTER TABLE {} ADD FOREIGN KEY (v) REFERENCES public.kinds",
}
"""By name, what is done to an append table of two columns and the lineage."""


class Ruled(Driver):
    """A pipeline into a table with one rule."""

    def __init__(self, name: str, rule: str, dsn: str, rows: int) -> None:
        self._dsn, self._rows = dsn, rows
        columns = {"id": "bigint", "v": "integer"}
        self.pipeline = Pipeline(
            name=name, source=KafkaSource(topics=name, records_per_epoch=rows), parse=Json(columns=columns),
            sinks=PostgresTable(table=name, columns=columns), bad_records="quarantine",
        )  # fmt: skip
        self.source = FakeKafka()
        self.source.produce(name, 0, 0)
        self.ledger = PostgresLedger(dsn)
        self.create()
        with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(rule.format(f"public.{name}"))

    def _batches(self, start: int, until: int) -> Iterator[pa.RecordBatch]:
        for first in range(start, until, AT_ONCE):
            rows = [
                {
                    "topic": self.pipeline.name, "partition": 0, "offset": offset, "timestamp_type": 0,
                    "value": b'{"id": %d, "v": %d}' % (offset, offset % 100),
                }
                for offset in range(first, min(first + AT_ONCE, until))
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_SCHEMA)

    def epoch(self, number: int) -> tuple[float, float]:
        """Seconds of the seal and of the commit of one epoch."""
        self.source.produce(self.name, 0, self._rows)
        run = str(number)
        planned, ticket = self.to_begun(run)
        ticket = read_plan(self._dsn, self.name, ticket.epoch_id, ticket.attempt).ticket
        writer = one_pass_writer(self.pipeline.spec, ticket, self._dsn)
        (only,) = planned.ranges
        write_as_spark(writer, [self._batches(only.range.start, only.range.until)])
        begun = time.monotonic()
        self.seal(ticket, run)
        sealed = time.monotonic()
        self.commit(planned)
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


def section(rows: int, rounds: int) -> str:
    """Measure, and render the table."""
    medians = {
        rule: [statistics.median(seconds) for seconds in zip(*each, strict=True)]
        for rule, each in measured(rows, rounds).items()
    }
    base = medians[NO_RULE][0]
    figures = [
        [rule, f"{seal / base:.2f}", f"{seal:.2f}", f"{commit:.2f}"] for rule, (seal, commit) in medians.items()
    ]  # fmt: skip
    headings = ["rule of the table", "seal, ratio to no rule", "seal, seconds", "commit, seconds"]
    intro = f"Epochs of {rows:,} rows into append tables of two columns; medians of {rounds} rounds."
    return measured_table("bench.trial", intro, headings, figures)


if __name__ == "__main__":
    run("bench.trial", __doc__, section, rows=(ROWS, "rows of an epoch"), rounds=(ROUNDS, "rounds that count"))
