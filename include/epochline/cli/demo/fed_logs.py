"""Which logs were fed into the topic, across demos and interruptions: what the verdict compares the target with.

``fed.json`` names a log before its first line is sent, with the ends of the partitions at that moment. Line i of a
log goes to partition i modulo their number, in order, so that after an interruption the ends say which lines are in
Kafka. Records that somebody else fed between demos are read from Kafka into a log of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

from epochline.errors import StackError
from epochline.local.home import write_private

PARTITIONS = 4
"""Of the topic, where the demo has to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLog:
    """One log: the file, and where its records begin and end in each partition; ``until`` is None while it is fed."""

    name: str
    start: Mapping[int, int]
    until: Mapping[int, int] | None = field(default=None)


class FedLogs:
    """The list of one demo folder."""

    def __init__(self, folder: Path, topic: str, bootstrap: str) -> None:
        self._folder = folder
        self._topic = topic
        self._bootstrap = bootstrap
        self._file = folder / "fed.json"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._logs = self._read()

    @property
    def paths(self) -> list[Path]:
        """Every log that holds lines which are in Kafka."""
        return [self._folder / log.name for log in self._logs]

    def __len__(self) -> int:
        return len(self._logs)

    def settle(self) -> list[str]:
        """Account for everything in the topic: cut an interrupted log to what was fed, take in what others fed.

        Raises:
            StackError: what is in the topic cannot be told apart.
        """
        notes = []
        ends = self._ends()
        if self._logs and self._logs[-1].until is None:
            notes.append(self._cut(self._logs[-1], ends))
        known = self._logs[-1].until or {} if self._logs else {}
        strange = {p: (known.get(p, 0), end) for p, end in ends.items() if end > known.get(p, 0)}
        if strange:
            name = f"others-{len(self._logs) + 1:04}.log"
            records = self._take_in(self._folder / name, strange)
            start = {p: known.get(p, 0) for p in ends}
            self._write([*self._logs, FedLog(name=name, start=start, until=ends)])
            notes.append(f"{records} records that were fed by hand are counted as produced (kept in {name})")
        return notes

    def draft(self) -> Path:
        """Where the next log is to be written before it is fed."""
        return self._folder / f"log-{len(self._logs) + 1:04}.log"

    def begin(self, log: Path) -> None:
        """Note a log, before its first line is sent."""
        ends = self._ends() or dict.fromkeys(range(PARTITIONS), 0)
        self._write([*self._logs, FedLog(name=log.name, start=ends)])

    def finish(self) -> None:
        """Note that every line of the newest log was acknowledged."""
        log = self._logs[-1]
        lines = _count(self._folder / log.name)
        parts = len(log.start)
        until = {p: begun + _lines_of(p, lines, parts) for p, begun in log.start.items()}
        if until != self._ends():
            raise StackError(
                f"while {log.name} was fed, somebody else wrote to topic {self._topic} as well, so what was produced"
                " cannot be told. `epochline down --wipe` and the next demo begin anew."
            )
        self._write([*self._logs[:-1], replace(log, until=until)])

    def _cut(self, log: FedLog, ends: Mapping[int, int]) -> str:
        path = self._folder / log.name
        lines = _count(path) if path.exists() else 0
        parts = len(log.start)
        fed = {p: ends.get(p, begun) - begun for p, begun in log.start.items()}
        if any(records > _lines_of(p, lines, parts) for p, records in fed.items()):
            raise StackError(
                f"topic {self._topic} holds more records than the interrupted {log.name} has lines: somebody else"
                " fed it too. `epochline down --wipe` and the next demo begin anew."
            )
        until = {p: begun + fed[p] for p, begun in log.start.items()}
        draft = path.with_suffix(".cut")
        with path.open("rb") as source, draft.open("wb") as out:
            out.writelines(line for number, line in enumerate(source) if number // parts < fed[number % parts])
        # The list first: cutting a log that is cut already, after a crash between the two, would be cutting twice.
        kept = path.with_name(f"{path.stem}-cut.log")
        draft.replace(kept)
        self._write([*self._logs[:-1], replace(log, name=kept.name, until=until)])
        return f"an earlier demo was interrupted: {sum(fed.values())} of the {lines} lines of {log.name} were fed"

    def _take_in(self, path: Path, ranges: Mapping[int, tuple[int, int]]) -> int:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        partitions = {TopicPartition(self._topic, p): bounds for p, bounds in ranges.items()}
        records = 0
        try:
            consumer.assign(list(partitions))
            for at, (start, _) in partitions.items():
                consumer.seek(at, start)
            with path.open("wb") as out:
                while any(consumer.position(at) < until for at, (_, until) in partitions.items()):
                    for at, batch in consumer.poll(timeout_ms=1000).items():
                        for record in batch:
                            if record.offset >= partitions[at][1]:
                                continue
                            if record.value is None or b"\n" in record.value:
                                raise StackError(
                                    f"{self._topic}-{at.partition}, offset {record.offset}: holds no line of a log, so"
                                    " the demo's verdict cannot count it. `epochline down --wipe` begins anew."
                                )
                            out.write(record.value + b"\n")
                            records += 1
        finally:
            consumer.close()
        return records

    def _ends(self) -> dict[int, int]:
        from epochline.declare.source import KafkaSource
        from epochline.kafka.source import KafkaOffsets

        # By a pattern: a topic that is not there yet has no partitions, which is no error.
        view = KafkaOffsets({"bootstrap.servers": self._bootstrap}).look(KafkaSource(pattern=self._topic))
        return {one.tp.partition: one.high_watermark for one in view.partitions}

    def _read(self) -> list[FedLog]:
        if not self._file.exists():
            return []
        try:
            return [
                FedLog(
                    name=one["name"],
                    start={int(p): offset for p, offset in one["start"].items()},
                    until=None if one["until"] is None else {int(p): end for p, end in one["until"].items()},
                )
                for one in json.loads(self._file.read_text())
            ]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise StackError(
                f"{self._file}, the list of what was fed, cannot be read. `epochline down --wipe` begins anew."
            ) from error

    def _write(self, logs: list[FedLog]) -> None:
        write_private(self._file, json.dumps([asdict(log) for log in logs], indent=2) + "\n")
        self._logs = logs


def _count(path: Path) -> int:
    with path.open("rb") as source:
        return sum(1 for _ in source)


def _lines_of(partition: int, lines: int, partitions: int) -> int:
    return len(range(partition, lines, partitions))


def first_lines(source: Path, lines: int) -> list[bytes]:
    """The beginning of a log, to be shown."""
    with source.open("rb") as opened:
        return list(islice(opened, lines))
