"""What an epoch's state costs: by the keys that its records touch, not by the keys that are held (C8).

Three pipelines hold 10,000, a million and ten million keys. In each round every one of them runs an epoch whose records
touch the same number of keys, one pipeline after another, so that what slows the machine slows all of them.
"""

import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.epochs import WHOLE, Bench, counted_rounds, in_spark, timed
from bench.report import measured_table, run
from bench.servers import servers
from bench.stateful import COUNTS, TRANSFORM
from epochline import KafkaSource, Pipeline, PostgresTable, StateTable
from epochline.coordinator import LEASE, begin, commit, plan, seal
from epochline.operations import ACTIONS, Request, Subject
from epochline.protocol.epoch import Run
from tests.databases import as_admin

TOUCHED = 1_000
HELD = (10_000, 1_000_000, 10_000_000)
ROUNDS = 7
STEPS = ("stage", "seal", "commit", WHOLE)

PARSE = """
import pyarrow as pa
import pyarrow.compute as pc

def parse(batch):
    return pa.RecordBatch.from_arrays([pc.cast(batch.column("value"), pa.string())], names=["key"])
"""


class Held:
    """A pipeline that holds so many keys of state."""

    def __init__(self, keys: int, bench: Bench) -> None:
        self.keys, self._bench, self._runs = keys, bench, 0
        self.times: dict[str, list[float]] = defaultdict(list)
        table = f"held_{keys}"
        self._pipeline = Pipeline(
            name=table, source=KafkaSource(topics=table), parse="bench_state_parse:parse", record={"key": "bigint"},
            transform="bench_state_transform:count",
            sinks=PostgresTable(table=f"counts_{keys}", mode="upsert", key="key", columns=COUNTS, aggregated=True),
            state=StateTable(table=table, key="key", columns=COUNTS),
        )  # fmt: skip

    def fill(self) -> None:
        """Tables, a first epoch, and the keys."""
        bench = self._bench
        bench.make(self._pipeline.name, partitions=1)
        with bench.ledger.transaction() as tx:
            tx.targets.create(self._pipeline)
        self.epoch([0])
        self.times.clear()
        (state,) = self._pipeline.state
        bench.sql(
            f"INSERT INTO {state} (key, seen, _epoch)"  # noqa: S608 - a name of ours
            f" SELECT n, 0, 1 FROM generate_series(1, {self.keys - 1}) n"
        )
        as_admin(bench.dsn, f"VACUUM (ANALYZE) {state}")
        subject = Subject(
            name=self._pipeline.name, ledger=bench.ledger, declared=self._pipeline, source=bench.offsets
        )  # fmt: skip
        accept = ACTIONS["accept-state"]
        accept.act(subject, accept.parse({}), Request(actor="bench", reason="it was filled by hand"))  # type: ignore[attr-defined]

    def epoch(self, keys: Sequence[int]) -> None:
        """Send records of these keys, and run an epoch over them."""
        bench, self._runs = self._bench, self._runs + 1
        bench.produce(self._pipeline.name, (str(key).encode() for key in keys), 1)
        run = Run(dag_id="bench", run_id=str(self._runs), host="here")
        with timed(self.times, WHOLE):
            epoch = plan(bench.ledger, bench.offsets, self._pipeline, run).epoch
            assert epoch is not None
            ticket = begin(bench.ledger, epoch.pipeline, epoch.epoch_id, run, lease=LEASE)
            assert ticket is not None
            with timed(self.times, "stage"):
                bench.run_job(ticket)
            with timed(self.times, "seal"):
                seal(bench.ledger, bench.offsets, ticket, run)
            with timed(self.times, "commit"):
                commit(bench.ledger, bench.offsets, epoch.pipeline, epoch.epoch_id)


def measured(sizes: Sequence[int], rounds: int) -> list[Held]:
    """Every size, side by side."""
    with servers("postgres", "kafka") as stack, in_spark(stack) as bench:
        folder = stack.home.root
        for name, text in (("bench_state_transform", TRANSFORM), ("bench_state_parse", PARSE)):
            (folder / f"{name}.py").write_text(text)
        sys.path.insert(0, str(folder))
        held = [Held(size, bench) for size in sizes]
        for one in held:
            print(f"filling {one.keys} keys", flush=True)
            one.fill()
        chance = random.Random(1)  # noqa: S311 - no secret
        of_all = {f"{one.keys} keys, {step}": one.times[step] for one in held for step in STEPS}
        for _ in counted_rounds(of_all, rounds):
            for one in held:
                one.epoch(chance.sample(range(one.keys), TOUCHED))
    return held


def section(held: list[int], rounds: int) -> str:
    """The table, as ratios to the smallest."""
    sizes = measured(held, rounds)
    medians = [{step: statistics.median(size.times[step]) for step in STEPS} for size in sizes]
    rows = [
        [f"{size.keys:,}", *(f"{took[step] / medians[0][step]:.2f}" for step in STEPS), f"{took[WHOLE]:.2f} s"]
        for size, took in zip(sizes, medians, strict=True)
    ]
    headings = ["keys held", *(f"{step}, ratio to {sizes[0].keys:,} keys" for step in STEPS), WHOLE]
    intro = f"Each epoch touches {TOUCHED:,} keys; medians of {rounds} rounds."
    return measured_table("bench.state", intro, headings, rows)


if __name__ == "__main__":
    run("bench.state", __doc__, section, held=(list(HELD), "keys held"), rounds=(ROUNDS, "epochs of each size"))
