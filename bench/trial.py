"""What the seal costs where a target has rules: one that is looked at in staging, and those that only a trial shows.

In each round every table takes one epoch of the same rows, one table after another, so that what slows the machine
slows all of them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import pyarrow as pa

from bench.epochs import counted_rounds, timed
from bench.report import measured_table, ratio, run
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.declare.columns import LINEAGE
from epochline.postgres.ledger.attempt_plan import read_plan
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.offsets import PlannedRange
from epochline.spark.part_rows import one_pass_writer
from tests.databases import query
from tests.driver import Driver
from tests.in_memory.kafka import FakeKafka
from tests.job import write_as_spark
from tests.reading import source_batch

ROWS, ROUNDS, AT_ONCE = 100_000, 7, 10_000
NO_RULE = "no rule"
RULES = {
    NO_RULE: "SELECT 1",
    "a check, looked at in staging": "ALTER TABLE {} ADD CHECK (v >= 0)",
    "a further unique index, tried": "CREATE UNIQUE INDEX ON {} ((id + 0))",
    "a foreign key, tried": "ALTER TABLE {} ADD FOREIGN KEY (v) REFERENCES public.kinds",
}
"""By name, what is done to an append table of two columns and the lineage."""

Times = Mapping[tuple[str, str], Sequence[float]]
"""By rule and step, ``seal`` or ``commit``, the seconds of each round."""


class Ruled(Driver):
    """A pipeline into a table with one rule."""

    def __init__(self, name: str, rule: str, dsn: str, rows: int) -> None:
        self._dsn, self._rows = dsn, rows
        columns = {"id": "bigint", "v": "integer"}
        # A plan accepts these rules on a table of one's own alone.
        self.pipeline = Pipeline(
            name=name, source=KafkaSource(topics=name, records_per_epoch=rows), parse=Json(columns=columns),
            sinks=PostgresTable(table=name), bad_records="quarantine",
        )  # fmt: skip
        self.source = FakeKafka()
        self.source.produce(name, 0, 0)
        self.ledger = PostgresLedger(dsn)
        lineage = ", ".join(f"{column} {kind}" for column, kind in LINEAGE.items())
        query(dsn, f"CREATE TABLE public.{name} (id bigint, v integer, {lineage})")
        query(dsn, rule.format(f"public.{name}"))

    @staticmethod
    def _batches(planned: PlannedRange) -> Iterator[pa.RecordBatch]:
        for first in range(planned.range.start, planned.range.until, AT_ONCE):
            offsets = range(first, min(first + AT_ONCE, planned.range.until))
            values = (b'{"id": %d, "v": %d}' % (offset, offset % 100) for offset in offsets)
            yield source_batch(planned.tp, offsets, values)

    def epoch(self, number: int, rule: str, times: dict[tuple[str, str], list[float]]) -> None:
        """Keep the seconds of the seal and of the commit of one epoch."""
        self.source.produce(self.name, 0, self._rows)
        run = str(number)
        planned, ticket = self.to_begun(run)
        ticket = read_plan(self._dsn, self.name, ticket.epoch_id, ticket.attempt).ticket
        writer = one_pass_writer(self.pipeline.spec, ticket, self._dsn)
        (only,) = planned.ranges
        write_as_spark(writer, [self._batches(only)])
        with timed(times, (rule, "seal")):
            self.seal(ticket, run)
        with timed(times, (rule, "commit")):
            self.commit(planned)


def measured(rows: int, rounds: int) -> Times:
    """Seconds of seal and commit of each rule, after one round that is not counted."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with servers("postgres") as stack:
        dsn = stack.postgres.dsn()
        query(dsn, "CREATE TABLE public.kinds (v integer PRIMARY KEY)")
        query(dsn, "INSERT INTO public.kinds SELECT generate_series(0, 99)")
        ruled = {rule: Ruled(f"ruled_{at}", made, dsn, rows) for at, (rule, made) in enumerate(RULES.items())}
        for number in counted_rounds(times, rounds):
            for rule, one in ruled.items():
                one.epoch(number, rule, times)
    return times


def section(rows: int, rounds: int) -> str:
    times = measured(rows, rounds)
    figures = []
    for rule in RULES:
        seal, commit = times[rule, "seal"], times[rule, "commit"]
        beside = ratio(seal, times[NO_RULE, "seal"])
        figures.append([rule, f"{beside:.2f}", f"{median(seal):.2f}", f"{median(commit):.2f}"])
    headings = ["rule of the table", "seal, ratio to no rule", "seal, seconds", "commit, seconds"]
    intro = f"Epochs of {rows:,} rows into append tables of two columns; medians of {rounds} rounds."
    return measured_table("bench.trial", intro, headings, figures)


if __name__ == "__main__":
    run("bench.trial", __doc__, section, rows=(ROWS, "rows of an epoch"), rounds=(ROUNDS, "rounds that count"))
