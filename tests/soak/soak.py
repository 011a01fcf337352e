"""One soak: a stack, workers, a producer, a watcher and a nemesis; then the proof."""

import multiprocessing
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from kafka import KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError

from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from tests.databases import query
from tests.integration.kafka_topics import admin_of, make_topic
from tests.ports import choose_ports
from tests.soak.faults import Fault, recoveries, schedule
from tests.soak.nemesis import Hit, Nemesis
from tests.soak.pipelines import PARTITIONS, PIPELINES, declared, topic_of
from tests.soak.report import DRAIN_SECONDS
from tests.soak.tasks import Servers
from tests.soak.topics import TopicWatch
from tests.soak.watch import LEFT_OVER, Exactness, Watch, compare, log_of
from tests.soak.worker import Seat, work
from tests.waiting import idle_seconds

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(kw_only=True)
class Result:
    seed: int
    seconds: float
    planned: list[Fault]
    hits: list[Hit]
    wrong: list[str]
    snapshots: int
    drained_after: float | None
    left: list[str] = field(default_factory=list)
    tables: list[Exactness] = field(default_factory=list)
    topics: list[Exactness] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    aborted: int = 0
    fenced: int = 0
    attempts: int = 0
    recovery: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Soak:
    def __init__(self, home: Path, *, seed: int, seconds: float) -> None:
        self._seed, self._seconds = seed, seconds
        self._stack = Stack(home)
        self._producing = threading.Event()
        self._stopping = _SPAWN.Value("b", 0)
        self._workers: list[SpawnProcess] = []
        self._left: list[str] = []

    def run(self) -> Result:
        """Everything, from an empty home to the verdict."""
        choose_ports(self._stack.home)
        self._stack.up(parts=("postgres", "kafka"))
        self._prepare()
        seats = self._start_workers()
        producer = threading.Thread(target=self._produce, daemon=True)
        producer.start()
        watch = Watch(self._stack.postgres.dsn(), PIPELINES)
        watch.start()
        topics = TopicWatch(self._stack.kafka.bootstrap_servers, [topic_of(name) for name in PIPELINES])
        planned = schedule(self._seed, self._seconds)
        hits = self._break(Nemesis(self._stack, seats), planned)
        self._producing.set()
        producer.join()
        drained = self._drain()
        self._stopping.value = 1
        watch.stop()
        unread = topics.stop()
        result = Result(
            seed=self._seed, seconds=self._seconds, planned=planned, hits=hits,
            wrong=[*watch.wrong, *unread], snapshots=watch.snapshots, drained_after=drained, left=self._left,
        )  # fmt: skip
        self._count(topics, result)
        return result

    def down(self) -> None:
        self._stopping.value = 1
        for worker in self._workers:
            worker.join(20)
            if worker.is_alive():
                worker.kill()
        self._stack.down(wipe=False)

    def _prepare(self) -> None:
        for name in (*PIPELINES, *map(topic_of, PIPELINES)):
            make_topic(self._stack.kafka.bootstrap_servers, name, PARTITIONS)
        with PostgresLedger(self._stack.postgres.dsn()).transaction() as tx:
            for name in PIPELINES:
                tx.targets.create(declared(name))

    def _start_workers(self) -> list[Seat]:
        servers = Servers(dsn=self._stack.postgres.dsn(), bootstrap=self._stack.kafka.bootstrap_servers)
        seats = []
        for name in PIPELINES:
            for by_schedule in (True, False):
                seat = Seat(
                    pipeline=name, by_schedule=by_schedule, phase=_SPAWN.Value("i", 0), pid=_SPAWN.Value("i", 0),
                    stopping=self._stopping, orders=_SPAWN.Queue(), ended=_SPAWN.Queue(),
                )  # fmt: skip
                log = self._stack.home.root / f"{name}-{'schedule' if by_schedule else 'manual'}.log"
                worker = _SPAWN.Process(target=work, args=(seat, servers, str(log)), daemon=True)
                worker.start()
                self._workers.append(worker)
                seats.append(seat)
        return seats

    def _produce(self) -> None:
        producer, turn = None, 0
        while not self._producing.wait(0.2):
            turn += 1
            try:
                if producer is None:
                    producer = KafkaProducer(bootstrap_servers=self._stack.kafka.bootstrap_servers, acks="all")
                for at, name in enumerate(PIPELINES):
                    for partition in range(PARTITIONS):
                        # Also where a turn broke off, the number says which partition it went to, as `key_of` needs.
                        number = (turn * len(PIPELINES) + at) * PARTITIONS + partition
                        producer.send(name, value=f"{name} {number}".encode(), partition=partition)
            except (KafkaError, OSError):
                continue  # The log itself says what was produced.
        if producer is not None:
            with suppress(KafkaError):
                producer.close(timeout=30)

    def _break(self, nemesis: Nemesis, planned: list[Fault]) -> list[Hit]:
        hits: list[Hit] = []
        begun = time.monotonic()
        for fault in planned:
            while time.monotonic() - begun < fault.at:
                nemesis.wake()
                time.sleep(0.02)
            if time.monotonic() - begun > self._seconds:
                break
            hit = nemesis.strike(fault)
            if hit is not None:
                hits.append(hit)
            shown = "met nothing" if hit is None else f"{hit.pipeline} in {hit.phase}"
            print(f"{time.monotonic() - begun:7.1f} s  {fault.kind:<20} {shown}", flush=True)
        while time.monotonic() - begun < self._seconds:
            nemesis.wake()
            time.sleep(0.02)
        nemesis.wake(all_of_them=True)
        return hits

    def _drain(self) -> float | None:
        """Seconds until all that was produced is committed and shown, and nothing is left over, without help.

        None if the machine stands idle for DRAIN_SECONDS before that.
        """
        begun, idle = time.monotonic(), idle_seconds()
        while idle_seconds() - idle < DRAIN_SECONDS:
            if all(self._lag(name) == 0 for name in PIPELINES):
                self._left = [left for (left,) in self._ask(LEFT_OVER)]
                if not self._left:
                    return time.monotonic() - begun
            time.sleep(0.5)
        return None

    def _lag(self, name: str) -> int:
        keys = [TopicPartition(name, p) for p in range(PARTITIONS)]
        with admin_of(self._stack.kafka.bootstrap_servers) as admin:
            ends = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
        heads = dict(self._ask("SELECT partition, next_offset FROM epochline.heads WHERE pipeline = %s", name))
        unfinished = "SELECT 1 FROM epochline.epochs WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED')"
        behind: int = sum(ends[key].offset - heads.get(key.partition, 0) for key in keys)
        return behind + len(self._ask(unfinished, name))

    def _count(self, topics: TopicWatch, result: Result) -> None:
        bootstrap = self._stack.kafka.bootstrap_servers
        for name in PIPELINES:
            [(epochs, records)] = self._ask(
                "SELECT count(*), coalesce(sum(records_read), 0) FROM epochline.epochs"
                " WHERE pipeline = %s AND state = 'COMMITTED' AND records_read > 0",
                name,
            )
            result.epochs[name], result.records[name] = int(epochs), int(records)
            result.tables += compare(self._stack.postgres.dsn(), bootstrap, name)
            result.topics.append(topics.compare(topic_of(name), log_of(bootstrap, name)))
            asked = "SELECT committed_at FROM epochline.epochs WHERE pipeline = %s AND state = 'COMMITTED' ORDER BY 1"
            commits = [at for (at,) in self._ask(asked, name)]
            for hit, after in recoveries([hit for hit in result.hits if hit.hurts(name)], commits):
                if hit.pipeline in (name, "all"):
                    result.recovery[hit.kind].append(after)
        [(result.aborted,)] = self._ask("SELECT coalesce(sum(aborts), 0)::int FROM epochline.epochs")
        [(result.fenced, result.attempts)] = self._ask(
            "SELECT count(*) FILTER (WHERE state IN ('FENCED', 'FAILED')), count(*) FROM epochline.attempts"
        )

    def _ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return query(self._stack.postgres.dsn(), text, *values)
