"""How much memory an epoch takes, against the number of its records and their size.

Each epoch runs in a process of its own, which starts its own Spark: what an earlier epoch left in a heap or in a worker
does not count. Memory shared by several processes is divided among them. In ``local[2]`` the JVM is driver and
executor at once, so the table has the JVM, whose heap may have 1 GiB, beside the Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from bench.epochs import Bench, Epochs, in_spark
from bench.memory import alone, held
from bench.report import machine, write_section
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.local.stack import Stack

SIZES = (
    (10_000, 100),
    (100_000, 100),
    (1_000_000, 100),
    (10_000_000, 100),
    (100_000, 1_000),
    (10_000, 100_000),
    (1_000, 1_000_000),
)
"""Records of an epoch, and about how many bytes each has."""

PARTITIONS = 4
PARTS = ("the JVM", "Python workers", "the client")
COLUMNS = {"id": "bigint", "text": "text"}
_EVERY_SECONDS = 0.1


class Peaks:
    """The most memory that each part of a Spark application held, in bytes, by part; watched in a thread."""

    def __init__(self) -> None:
        self.most = dict.fromkeys(PARTS, 0)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Stop watching."""
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._over.wait(_EVERY_SECONDS):
            now = dict.fromkeys(PARTS, 0)
            jvms = [one for one in this.children(recursive=True) if "java" in one.name()]
            now["the JVM"] = sum(alone(one) for one in jvms)
            now["Python workers"] = sum(held(one.pid) - alone(one) for one in jvms)
            now["the client"] = alone(this)
            self.most = {part: max(most, now[part]) for part, most in self.most.items()}


def topic_of(records: int, size: int) -> str:
    """The topic with the records of one epoch."""
    return f"bench-footprint-{records}-{size}"


def values(records: int, size: int) -> Iterator[bytes]:
    """Records of about the size."""
    for number in range(records):
        head = f'{{"id": {number}, "text": "'
        yield f'{head}{"x" * max(1, size - len(head) - 2)}"}}'.encode()


def run_one(home: Path, records: int, size: int) -> Mapping[str, int]:
    """One epoch in this process.

    Raises:
        RuntimeError: a record is missing or doubled.
    """
    stack = Stack(home)
    name = topic_of(records, size)
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics=name, records_per_epoch=100_000_000), parse=Json(columns=COLUMNS),
        sinks=PostgresTable(table=name.replace("-", "_"), columns=COLUMNS),
    )  # fmt: skip
    with in_spark(stack, **{"spark.driver.memory": "1g"}) as bench:
        epochs = Epochs(bench, pipeline)
        peaks = Peaks()
        epochs.run()
        peaks.stop()
        _check(bench, pipeline, records)
    return peaks.most


def _check(bench: Bench, pipeline: Pipeline, records: int) -> None:
    found = bench.sql(f"SELECT count(*), count(DISTINCT id) FROM {pipeline.tables[0].table}")  # noqa: S608 - ours
    if found != [(records, records)]:
        raise RuntimeError(f"{pipeline.name}: {found} in place of {records} records")


def measured(sizes: tuple[tuple[int, int], ...]) -> dict[tuple[int, int], Mapping[str, int]]:
    """Peaks by epoch, each in a process of its own."""
    found = {}
    with servers("postgres", "kafka") as stack:
        bench = Bench(stack, None)
        for records, size in sizes:
            bench.make(topic_of(records, size), PARTITIONS)
            bench.produce(topic_of(records, size), values(records, size), PARTITIONS)
            command = [sys.executable, "-m", "bench.footprint", "--one", str(stack.home.root), str(records), str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[records, size] = json.loads(done.stdout.splitlines()[-1])
            print(f"{records} records of {size} bytes: {found[records, size]}", flush=True)
    return found


def rendered(found: Mapping[tuple[int, int], Mapping[str, int]]) -> str:
    """The table."""
    lines = [
        f"One epoch in a process of its own, on `local[2]`, {PARTITIONS} Kafka partitions; the most at any moment, in"
        " MiB.",
        f"Measured by `python -m bench.footprint` on {machine()}; load average {os.getloadavg()[0]:.1f}.",
        "",
        "| records | bytes of each | " + " | ".join(PARTS) + " | all |",
        "|---:|---:|" + "---:|" * (len(PARTS) + 1),
    ]
    for (records, size), most in found.items():
        parts = " | ".join(f"{most[part] / 2**20:.0f}" for part in PARTS)
        lines.append(f"| {records:,} | {size:,} | {parts} | {sum(most.values()) / 2**20:.0f} |")
    return "\n".join(lines)


def _size(text: str) -> tuple[int, int]:
    records, _, size = text.partition("x")
    return int(records), int(size)


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__)
    parser.add_argument(
        "--sizes", type=_size, nargs="+", default=SIZES, help="epochs, as 100000x1000: records and bytes of each"
    )
    parser.add_argument("--one", nargs=3, metavar=("HOME", "RECORDS", "BYTES"), help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help="the page whose table is replaced")
    given = parser.parse_args()
    if given.one:
        home, records, size = given.one
        print(json.dumps(run_one(Path(home), int(records), int(size))))
        return
    write_section(given.report, "bench.footprint", rendered(measured(tuple(given.sizes))))


if __name__ == "__main__":
    main()
