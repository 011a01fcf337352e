"""Two pipelines at once on one Spark Connect server: what each takes, beside what it takes alone.

The server has room for the tasks of two epochs, and shares the cores evenly among the jobs that run. So an epoch beside
another one may take twice its time, and not more; a small epoch need not wait until a large one ends. Small epochs run
one after the other while the large one runs. Each job is a client process of its own, as under Airflow. After each
round the bench compares both tables with what was produced.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.epochs import WHOLE, Bench, Epochs, ServerJob
from bench.report import measured_table, ratio, run, spread
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.local.stack import Stack

LARGE, SMALL, ROUNDS, PARTITIONS = 400_000, 1_000, 5, 2
NAMES, WHEN = ("large", "small"), ("alone", "at once")
COLUMNS = {"id": "bigint", "who": "text"}

Times = Mapping[str, Mapping[str, Sequence[float]]]
"""By pipeline, the seconds of its epochs ``alone`` and ``at once``."""


class Client:
    """Epochs of one pipeline, whose jobs are clients of the stack's Spark server."""

    def __init__(self, stack: Stack, name: str, records: int) -> None:
        self.name, self.records, self.produced = name, records, 0
        self.bench = Bench(stack, None)
        topic = f"bench-{name}"
        self.bench.make(topic, partitions=PARTITIONS)
        pipeline = Pipeline(
            name=topic, source=KafkaSource(topics=topic, records_per_epoch=100_000_000), parse=Json(columns=COLUMNS),
            sinks=PostgresTable(table=name, columns=COLUMNS),
        )  # fmt: skip
        self._epochs = Epochs(self.bench, pipeline, ServerJob(stack, self.bench, name))

    def run(self) -> float:
        """Seconds of an epoch, whose records are produced before."""
        numbers = range(self.produced, self.produced + self.records)
        values = (f'{{"id": {number}, "who": "customer {number % 1000}"}}'.encode() for number in numbers)
        self.bench.produce(f"bench-{self.name}", values, PARTITIONS)
        self.produced += self.records
        self._epochs.run()
        return self._epochs.times[WHOLE][-1]

    def check(self) -> None:
        """Compare the table with what was produced; raises `RuntimeError` if a record is missing or doubled."""
        self.bench.check(self.name, self.produced)


def measured(large: int, rounds: int) -> Times:
    """Seconds of every epoch, after one round that is not counted."""
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in NAMES}
    with servers("postgres", "kafka", "spark") as stack, ThreadPoolExecutor(1) as pool:
        one, other = Client(stack, "large", large), Client(stack, "small", SMALL)
        for number in range(rounds + 1):
            alone = {client.name: client.run() for client in (one, other)}
            running = pool.submit(one.run)
            small = [other.run()]
            while not running.done():
                small.append(other.run())
            at_once = {"large": [running.result()], "small": small}
            one.check()
            other.check()
            print(f"round {number} of {rounds}: alone {alone}, at once {at_once}", flush=True)
            if number:
                for name in NAMES:
                    times[name]["alone"].append(alone[name])
                    times[name]["at once"] += at_once[name]
    return times


def section(large: int, rounds: int) -> str:
    times = measured(large, rounds)
    rows = [
        [
            f"{records:,} records", f"{ratio(times[name]['at once'], times[name]['alone']):.2f}",
            *(spread(times[name][when], 2) for when in WHEN),
        ]
        for name, records in {"large": large, "small": SMALL}.items()
    ]  # fmt: skip
    headings = ["epoch", "time at once, ratio to alone", *(f"{when}, seconds: median, least, most" for when in WHEN)]
    intro = f"An epoch of {large:,} records and epochs of {SMALL:,}; {rounds} rounds, alone and then at once."
    return measured_table("bench.shares", intro, headings, rows)


if __name__ == "__main__":
    sizes = {"large": (LARGE, "records of the large epoch"), "rounds": (ROUNDS, "rounds that count")}
    run("bench.shares", __doc__, section, **sizes)
