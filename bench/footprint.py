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
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.epochs import Bench, Epochs, ServerJob, in_spark
from bench.memory import alone
from bench.report import commit, machine, write_section
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


class Peaks:
    """The most memory that each part of a Spark application held, in bytes, by part; watched in a thread.

    Args:
        server: the process of the Spark server; None if Spark runs in a child of this process.
    """

    def __init__(self, server: int | None) -> None:
        self.most = dict.fromkeys((*PARTS, LARGEST), 0)
        self._server = server
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
            children = this.children(recursive=True)
            jvm = next((one for one in children if "java" in one.name()), None)
            if self._server is None:
                clients = [this]
            else:
                jvm, clients = psutil.Process(self._server), children
            workers = [] if jvm is None else [alone(one) for one in jvm.children(recursive=True)]
            now = {
                "the JVM": 0 if jvm is None else alone(jvm), "Python workers": sum(workers),
                "the client": sum(map(alone, clients)), LARGEST: max(workers, default=0),
            }  # fmt: skip
            self.most = {part: max(most, now[part]) for part, most in self.most.items()}


def topic_of(where: str, records: int, size: int) -> str:
    """The topic with the records of one epoch."""
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
    peaks = Peaks(server)
    epochs.run()
    peaks.stop()
    _check(bench, epochs.pipeline, records)
    return peaks.most


def _check(bench: Bench, pipeline: Pipeline, records: int) -> None:
    found = bench.sql(f"SELECT count(*), count(DISTINCT id) FROM {pipeline.tables[0].table}")  # noqa: S608 - ours
    if found != [(records, records)]:
        raise RuntimeError(f"{pipeline.name}: {found} in place of {records} records")


def measured(sizes: Sequence[tuple[str, int, int]]) -> list[dict[str, str | int]]:
    """Peaks of each epoch, with where it ran, its records and their size."""
    found: list[dict[str, str | int]] = []
    with servers("postgres", "kafka") as stack:
        bench = Bench(stack, None)
        for where, records, size in sizes:
            bench.make(topic_of(where, records, size), PARTITIONS)
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
    lines = [
        f"One epoch alone on its Spark, two tasks at a time, {PARTITIONS} Kafka partitions; the most at any"
        " moment, in MiB.",
        f"Measured by `python -m bench.footprint` on {stored['machine']}; load average {stored['load']};"
        f" {stored['date']}, `{stored['commit']}`.",
        "",
        f"| where | records | bytes of each | {' | '.join(columns)} | all |",
        "|---|---:|---:|" + "---:|" * (len(columns) + 1),
    ]
    for one in stored["peaks"]:
        if one["bytes"] == SMALL_BYTES and one["records"] < SHOWN_RECORDS:
            continue
        parts = " | ".join(f"{one[part] / 2**20:.0f}" for part in columns)
        whole = sum(one[part] for part in PARTS) / 2**20
        lines.append(f"| {one['where']} | {one['records']:,} | {one['bytes']:,} | {parts} | {whole:.0f} |")
    return "\n".join(lines)


def _size(text: str) -> tuple[str, int, int]:
    found = re.fullmatch(rf"({DRIVER}|{SERVER}):(\d+)x(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not of the form {DRIVER}:100000x1000 or {SERVER}:100000x1000")
    return found[1], int(found[2]), int(found[3])


def main() -> None:
    """Measure, print, and write the report."""
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
