"""How much memory an epoch takes, against the number of its records and their size.

Each epoch has a Spark of its own, a driver or a Spark Connect server: what an earlier epoch left in a heap or in a
worker does not count. Memory shared by several processes is divided among them. With ``local[2]`` the JVM is driver and
executor at once, so the table has the JVM, whose heap may have 1 GiB, beside the Python workers.

What was measured is kept in ``bench/footprint.json``, from which the page's table is made.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.epochs import Bench, Epochs, ServerJob, in_spark
from bench.processes import alone, peaks
from bench.report import commit, machine, table, write_section
from bench.servers import servers
from epochline import Json, KafkaSource, Pipeline, PostgresTable
from epochline.local.stack import Stack

DRIVER, SERVER = "driver", "server"
"""Where an epoch runs: in a driver of its own, or on a Spark Connect server."""

SIZES = (
    (DRIVER, 10_000, 100),
    (DRIVER, 100_000, 100),
    (DRIVER, 1_000_000, 100),
    (DRIVER, 10_000_000, 100),
    (DRIVER, 100_000, 1_000),
    (DRIVER, 10_000, 100_000),
    (DRIVER, 1_000, 1_000_000),
    (SERVER, 10_000, 100),
    (SERVER, 1_000_000, 100),
    (SERVER, 10_000_000, 100),
    (SERVER, 10_000, 100_000),
)
"""Where an epoch runs, its records, and about how many bytes each has."""

STORED = Path(__file__).with_name("footprint.json")
"""What was measured last."""

SMALL_BYTES, SHOWN_RECORDS = 100, 1_000_000
PARTITIONS = 4
PARTS = ("the JVM", "Python workers", "the client")
LARGEST = "the largest worker"
COLUMNS = {"id": "bigint", "text": "text"}
_EVERY_SECONDS = 0.1


def _now(server: int | None) -> Mapping[str, int]:
    """The bytes that each part of a Spark application holds; ``server`` is the Spark server's process, if there is one.

    Without it, Spark runs in a child of this process.
    """
    this = psutil.Process()
    children = this.children(recursive=True)
    jvm, clients = next((child for child in children if "java" in child.name()), None), [this]
    if server is not None:
        jvm, clients = psutil.Process(server), children
    workers = [] if jvm is None else [alone(worker) for worker in jvm.children(recursive=True)]
    return {
        "the JVM": 0 if jvm is None else alone(jvm), "Python workers": sum(workers),
        "the client": sum(map(alone, clients)), LARGEST: max(workers, default=0),
    }  # fmt: skip


def topic_of(where: str, records: int, size: int) -> str:
    return f"bench-footprint-{where}-{records}-{size}"


def values(records: int, size: int) -> Iterator[bytes]:
    """Records of about the size."""
    for number in range(records):
        head = f'{{"id": {number}, "text": "'
        yield f'{head}{"x" * max(1, size - len(head) - 2)}"}}'.encode()


def run_one(home: Path, where: str, records: int, size: int) -> Mapping[str, int]:
    """One epoch, in this process or on the stack's Spark server.

    Raises:
        RuntimeError: a record is missing or doubled.
    """
    stack = Stack(home)
    name = topic_of(where, records, size)
    pipeline = Pipeline(
        name=name, source=KafkaSource(topics=name, records_per_epoch=100_000_000), parse=Json(columns=COLUMNS),
        sinks=PostgresTable(table=name.replace("-", "_"), columns=COLUMNS),
    )  # fmt: skip
    if where == SERVER:
        bench = Bench(stack, None)
        return _peaks(bench, Epochs(bench, pipeline, ServerJob(stack, bench, name)), records, stack.spark.pid)
    with in_spark(stack, **{"spark.driver.memory": "1g"}) as bench:
        return _peaks(bench, Epochs(bench, pipeline), records, None)


def _peaks(bench: Bench, epochs: Epochs, records: int, server: int | None) -> Mapping[str, int]:
    with peaks(partial(_now, server), _EVERY_SECONDS) as most:
        epochs.run()
    bench.check(epochs.pipeline.tables[0].table, records)
    return most


def measured(sizes: Sequence[tuple[str, int, int]]) -> list[dict[str, str | int]]:
    """Peaks of each epoch, with where it ran, its records and their size."""
    found: list[dict[str, str | int]] = []
    with servers("postgres", "kafka") as stack:
        bench = Bench(stack, None)
        for where, records, size in sizes:
            bench.make(topic_of(where, records, size), partitions=PARTITIONS)
            bench.produce(topic_of(where, records, size), values(records, size), PARTITIONS)
            if where == SERVER:
                stack.spark.stop()
                stack.up(("spark",))
            command = [sys.executable, "-m", "bench.footprint", "--one", str(stack.home.root), where]
            done = subprocess.run(
                [*command, str(records), str(size)], stdout=subprocess.PIPE, text=True, check=True
            )  # fmt: skip
            peaks = json.loads(done.stdout.splitlines()[-1])
            found.append({"where": where, "records": records, "bytes": size, **peaks})
            print(found[-1], flush=True)
    return found


def kept(found: Sequence[Mapping[str, str | int]]) -> dict[str, Any]:
    """What is stored: the peaks, and where and when they were measured."""
    return {
        "machine": machine(), "load": round(os.getloadavg()[0], 1), "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit(), "peaks": list(found),
    }  # fmt: skip


def rendered(stored: Mapping[str, Any]) -> str:
    """The table of what is stored. Of small records it shows the large epochs alone: their number changes nothing."""
    columns = (*PARTS, LARGEST)
    rows = [
        [
            epoch["where"], f"{epoch['records']:,}", f"{epoch['bytes']:,}",
            *(f"{epoch[part] / 2**20:.0f}" for part in columns), f"{sum(epoch[part] for part in PARTS) / 2**20:.0f}",
        ]
        for epoch in stored["peaks"]
        if epoch["bytes"] != SMALL_BYTES or epoch["records"] >= SHOWN_RECORDS
    ]  # fmt: skip
    lines = [
        f"One epoch alone on its Spark, two tasks at a time, {PARTITIONS} Kafka partitions; the most at any"
        " moment, in MiB.",
        f"Measured by `python -m bench.footprint` on {stored['machine']}; load average {stored['load']};"
        f" {stored['date']}, `{stored['commit']}`.",
        "",
        *table(["where", "records", "bytes of each", *columns, "all"], rows),
    ]
    return "\n".join(lines)


def _size(text: str) -> tuple[str, int, int]:
    found = re.fullmatch(rf"({DRIVER}|{SERVER}):(\d+)x(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not of the form {DRIVER}:100000x1000 or {SERVER}:100000x1000")
    return found[1], int(found[2]), int(found[3])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__)
    parser.add_argument(
        "--sizes", type=_size, nargs="+", default=SIZES,
        help="epochs, as driver:100000x1000: where, records and bytes of each",
    )  # fmt: skip
    parser.add_argument("--one", nargs=4, metavar=("HOME", "WHERE", "RECORDS", "BYTES"), help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help="the page whose table is replaced; the figures are stored as well")
    given = parser.parse_args()
    if given.one:
        home, where, records, size = given.one
        print(json.dumps(run_one(Path(home), where, int(records), int(size))))
        return
    stored = kept(measured(given.sizes))
    if given.report is not None:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    write_section(given.report, "bench.footprint", rendered(stored))


if __name__ == "__main__":
    main()
