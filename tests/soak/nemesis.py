"""Does what the schedule of faults says to a running stack, and remembers what each fault hit."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import psutil
import psycopg2

from epochline.coordinator import abort
from epochline.errors import EpochlineError
from epochline.local.kafka import Kafka
from epochline.local.postgres import Postgres
from epochline.local.stack import Stack
from epochline.postgres.ledger.transactions import PostgresLedger
from epochline.protocol.epoch import Interval, Run
from tests.databases import query
from tests.soak.faults import ON_TASKS, SERVERS, Fault
from tests.soak.worker import IDLE, Order, Seat
from tests.waiting import stop_process, wait_for

_PATIENCE_SECONDS = 8.0

T = TypeVar("T")
Met = tuple[str, str]
"""The pipeline and the phase that a fault hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    kind: str
    pipeline: str
    phase: str
    over_at: datetime

    @property
    def live(self) -> bool:
        """Whether it struck during an epoch."""
        return self.phase != IDLE

    def hurts(self, pipeline: str) -> bool:
        """Whether the pipeline has to recover from it."""
        return self.pipeline in (pipeline, "all") or self.kind in (*SERVERS, "connections cut")


class Nemesis:
    """Hurts a stack and the tasks that run on it."""

    def __init__(self, stack: Stack, seats: Sequence[Seat]) -> None:
        self._stack, self._seats = stack, seats
        self._runs: list[tuple[str, str]] = []
        self._stopped: list[tuple[float, int]] = []
        self._dsn = stack.postgres.dsn()

    def strike(self, fault: Fault) -> Hit | None:
        for seat in self._seats:
            while not seat.ended.empty():
                self._runs.append(seat.ended.get())
        make: dict[str, Callable[[Fault], Met | None]] = {
            **dict.fromkeys(ON_TASKS, self._on_a_task),
            "postgres restarted": self._restart,
            "broker killed": self._restart,
            "broker stopped": self._stop_broker,
            "aborted": self._abort,
            "run cleared": self._clear,
            "triggered twice": partial(self._by_hand, order=("trigger", None)),
            "backfill": self._backfill,
        }
        met = make[fault.kind](fault)
        if met is None:
            return None
        pipeline, phase = met
        return Hit(kind=fault.kind, pipeline=pipeline, phase=phase, over_at=datetime.now(UTC))

    def wake(self, *, all_of_them: bool = False) -> None:
        """Let stopped tasks go on whose time has come."""
        for at, pid in list(self._stopped):
            if all_of_them or at <= time.monotonic():
                self._stopped.remove((at, pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _busy(self, fault: Fault) -> Seat | None:
        """A seat that is in the fault's phase now, or soon; otherwise any that is at work."""
        first = fault.victim % len(self._seats)
        order = [*self._seats[first:], *self._seats[:first]]
        found = _soon(lambda: next((seat for seat in order if seat.now == fault.phase), None), every=0.0005)
        return found or next((seat for seat in order if seat.now != IDLE), None)

    def _on_a_task(self, fault: Fault) -> Met | None:
        seat = self._busy(fault)
        if seat is None:
            return None
        pid, phase = seat.pid.value, seat.now
        if phase == IDLE:
            return None
        if fault.kind == "connections cut":
            return (seat.pipeline, phase) if self._cut_connections() else None
        try:
            os.kill(pid, signal.SIGKILL if fault.kind == "task killed" else signal.SIGSTOP)
        except ProcessLookupError:
            return None  # It ended meanwhile.
        if fault.kind == "task stopped":
            # Half of them sleep beyond the patience of their scheduler and wake up as zombies.
            longer = 14.0 if fault.victim % 2 else 0.0
            self._stopped.append((time.monotonic() + fault.seconds + longer, pid))
        return seat.pipeline, phase

    def _cut_connections(self) -> int:
        asked = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = 'epochline' AND application_name LIKE 'epochline%'"
        )
        with suppress(psycopg2.OperationalError):
            return sum(ended for (ended,) in query(self._stack.postgres.superuser_dsn, asked, connect_timeout=5))
        return 0

    def _at_work(self, fault: Fault) -> Met:
        seat = self._busy(fault)
        return (seat.pipeline, seat.now) if seat is not None and seat.now != IDLE else ("all", IDLE)

    def _restart(self, fault: Fault) -> Met:
        """PostgreSQL ends by an immediate stop, the broker by a kill."""
        met = self._at_work(fault)
        server: Postgres | Kafka = self._stack.kafka if fault.kind == "broker killed" else self._stack.postgres
        assert server.pid is not None, f"{server.name} ended by itself"
        os.kill(server.pid, signal.SIGKILL if fault.kind == "broker killed" else signal.SIGQUIT)
        wait_for("a server that was killed is gone", lambda: server.pid is None, seconds=30)
        server.start()
        server.daemon.wait_ready(server.health, 120)
        return met

    def _stop_broker(self, fault: Fault) -> Met:
        met = self._at_work(fault)
        broker = psutil.Process(self._stack.kafka.pid)
        stop_process(broker.pid)
        time.sleep(fault.seconds)
        broker.resume()
        return met

    def _abort(self, fault: Fault) -> Met | None:
        seat = self._busy(fault)
        if seat is None:
            return None
        ledger, phase = PostgresLedger(self._dsn, lock_timeout=5), seat.now
        try:
            with ledger.transaction() as tx:
                epoch = tx.epochs.unfinished(seat.pipeline)
            if epoch is None:
                return None
            operator = Run(dag_id="operator", run_id="soak", host="soak")
            abort(ledger, seat.pipeline, epoch.epoch_id, operator, reason="the soak's operator", by_operator=True)
        except EpochlineError:
            return None
        return seat.pipeline, phase

    def _manual(self, fault: Fault) -> Seat:
        """The worker that runs manual orders of the fault's pipeline; another worker runs the schedule."""
        others = [seat for seat in self._seats if not seat.by_schedule]
        return others[fault.victim % len(others)]

    def _by_hand(self, fault: Fault, order: Order) -> Met:
        """Give an order while the schedule's run of the pipeline is at work."""
        seat = self._manual(fault)
        busy = next(one for one in self._seats if one.by_schedule and one.pipeline == seat.pipeline)
        _soon(lambda: busy.now != IDLE, every=0.0005)
        seat.orders.put(order)
        return seat.pipeline, busy.now

    def _backfill(self, fault: Fault) -> Met:
        now = datetime.now(UTC)
        interval = Interval(start=now - timedelta(hours=1), until=now - timedelta(seconds=fault.seconds))
        return self._by_hand(fault, ("backfill", interval))

    def _clear(self, fault: Fault) -> Met | None:
        """A run of the past, failed or committed, goes through its tasks again."""
        runs = [run for name, run in self._runs if name == self._manual(fault).pipeline]
        if not runs:
            return None
        return self._by_hand(fault, ("clear", random.Random(fault.victim).choice(runs)))


def _soon(check: Callable[[], T | None], every: float) -> T | None:
    """The first answer that is true, or the last one when patience ends."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (answer := check()) and time.monotonic() < deadline:
        time.sleep(every)
    return answer
