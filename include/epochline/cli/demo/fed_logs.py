"""The logs that were fed into the topic, across demos and interruptions. The verdict compares the target with them.

Before the first line of a log is sent, ``fed.json`` names the log, with the partitions' ends at that moment. Line i
goes to partition i modulo the number of partitions, in order. So after an interruption the ends say which lines are in
Kafka. Records that were fed by hand between demos are read from Kafka into a log of their own.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from epochline.errors import StackError
from epochline.local.home import write_private

PARTITIONS = 4
"""Partitions of the topic, if the demo creates it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FedLog:
    """A log's file, and the offsets where its records begin and end per partition; no ``until`` while it is fed."""

    name: str
    start: Mapping[int, int]
    until: Mapping[int, int] | None = None


_LOGS = TypeAdapter(list[FedLog])


class FedLogs:
    """The logs of one demo folder."""

    def __init__(self, folder: Path, topic: str, bootstrap: str) -> None:
        self._folder = folder
        self._topic = topic
        self._bootstrap = bootstrap
        self._file = folder / "fed.json"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._logs = self._read()

    @property
    def paths(self) -> list[Path]:
        """The files of all logs with lines in Kafka."""
        return [self._folder / log.name for log in self._logs]

    def __len__(self) -> int:
        return len(self._logs)

    def settle(self) -> list[str]:
        """Account for every record in the topic: cut an interrupted log to its fed lines, add records fed by hand.

        Raises:
            StackError: it is not known which log a record belongs to.
        """
        notes = []
        ends = self._ends()
        if self._logs and self._logs[-1].until is None:
            notes.append(self._cut(self._logs[-1], ends))
        accounted = self._logs[-1].until or {} if self._logs else {}
        strange = {p: (accounted.get(p, 0), end) for p, end in ends.items() if end > accounted.get(p, 0)}
        if strange:
            name = f"others-{len(self._logs) + 1:04}.log"
            records = self._take_in(self._folder / name, strange)
            self._write([*self._logs, FedLog(name=name, start={p: accounted.get(p, 0) for p in ends}, until=ends)])
            notes.append(f"{records} records that were fed by hand are counted as produced (kept in {name})")
        return notes

    def draft(self) -> Path:
        """The path for the next log, to be written before it is fed."""
        return self._folder / f"log-{len(self._logs) + 1:04}.log"

    def begin(self, log: Path) -> None:
        """Record a log before its first line is sent."""
        ends = self._ends() or dict.fromkeys(range(PARTITIONS), 0)
        self._write([*self._logs, FedLog(name=log.name, start=ends)])

    def finish(self) -> None:
        """Record that Kafka acknowledged every line of the newest log."""
        log = self._logs[-1]
        lines = _count(self._folder / log.name)
        parts = len(log.start)
        until = {p: begun + _lines_of(p, lines, parts) for p, begun in log.start.items()}
        if until != self._ends():
            raise StackError(
                f"another producer wrote to topic {self._topic} while {log.name} was fed, so it is not known what was"
                " produced. Run `epochline down --wipe`, then the demo again."
            )
        self._write([*self._logs[:-1], replace(log, until=until)])

    def _cut(self, log: FedLog, ends: Mapping[int, int]) -> str:
        path = self._folder / log.name
        lines = _count(path) if path.exists() else 0
        parts = len(log.start)
        fed = {p: ends.get(p, begun) - begun for p, begun in log.start.items()}
        if any(records > _lines_of(p, lines, parts) for p, records in fed.items()):
            raise StackError(
                f"topic {self._topic} holds more records than the interrupted {log.name} has lines: another"
                " producer wrote to it. Run `epochline down --wipe`, then the demo again."
            )
        until = {p: begun + fed[p] for p, begun in log.start.items()}
        draft = path.with_suffix(".cut")
        with path.open("rb") as source, draft.open("wb") as out:
            out.writelines(line for number, line in enumerate(source) if number // parts < fed[number % parts])
        # The cut log gets a name of its own, so that after a crash before the list is written it is not cut twice.
        cut = path.with_name(f"{path.stem}-cut.log")
        draft.replace(cut)
        self._write([*self._logs[:-1], replace(log, name=cut.name, until=until)])
        return f"an earlier demo was interrupted: {sum(fed.values())} of the {lines} lines of {log.name} were fed"

    def _take_in(self, path: Path, ranges: Mapping[int, tuple[int, int]]) -> int:
        from kafka import KafkaConsumer, TopicPartition

        partitions = {TopicPartition(self._topic, p): bounds for p, bounds in ranges.items()}
        records = 0
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        with closing(consumer), path.open("wb") as out:
            consumer.assign(list(partitions))
            for at, (start, _) in partitions.items():
                consumer.seek(at, start)
            while any(consumer.position(at) < until for at, (_, until) in partitions.items()):
                for at, batch in consumer.poll(timeout_ms=1000).items():
                    for record in batch:
                        if record.offset >= partitions[at][1]:
                            continue
                        if record.value is None or b"\n" in record.value:
                            raise StackError(
                                f"{self._topic}-{at.partition}, offset {record.offset}: holds no line of a log, so"
                                " the demo's verdict cannot count it. Run `epochline down --wipe`."
                            )
                        out.write(record.value + b"\n")
                        records += 1
        return records

    def _ends(self) -> dict[int, int]:
        from epochline.kafka.records import RecordReader

        logs = RecordReader({"bootstrap.servers": self._bootstrap}).held([self._topic])
        return {partition: log.end for (_, partition), log in logs.items()}

    def _read(self) -> list[FedLog]:
        try:
            return _LOGS.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return []
        except ValidationError as error:
            raise StackError(
                f"{self._file}, the list of what was fed, cannot be read. Run `epochline down --wipe`."
            ) from error

    def _write(self, logs: list[FedLog]) -> None:
        write_private(self._file, _LOGS.dump_json(logs, indent=2).decode() + "\n")
        self._logs = logs


def _count(path: Path) -> int:
    with path.open("rb") as source:
        return sum(1 for _ in source)


def _lines_of(partition: int, lines: int, partitions: int) -> int:
    return len(range(partition, lines, partitions))
