"""Does to a running world what the schedule of faults says, and remembers what each fault met."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil
import psycopg2
from kafka.errors import KafkaError

from tests.crash.pair import kill
from tests.databases import as_admin
from tests.nemesis.declared import NAME, PARTITIONS, SOURCE
from tests.nemesis.faults import WEIGHTS, Fault
from tests.nemesis.world import World
from tests.waiting import arguments_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that struck: the phase of the epoch that it met, None without one, and when it was over."""

    kind: str
    phase: str | None
    over_at: datetime


class Nemesis:
    """Hurts a world. What it freezes or takes away for a while comes back when its time has come."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._back: list[tuple[float, Callable[[], object]]] = []
        strikes: dict[str, Callable[[Fault], bool]] = {
            "node killed": lambda fault: self._kill_node(1 + fault.victim % 3, fault),
            "controller killed": lambda fault: self._kill_node(world.nodes.controller(), fault),
            "leader killed": lambda fault: self._kill_node(
                world.nodes.leader(SOURCE, fault.victim % PARTITIONS), fault
            ),
            "node frozen": self._freeze_node,
            "primary killed, standby promoted": self._fail_over,
            "PostgreSQL restarted": self._restart_postgres,
            "connections cut": self._cut,
            "standby killed": self._kill_standby,
            "Spark server killed": lambda _fault: self._kill_those([self._world.stack.spark.pid]),
            "Python worker killed": lambda fault: self._kill_one(fault, _under(world.stack.spark.pid, "pyspark")),
            "task killed": lambda fault: self._kill_one(fault, self._tasks()),
            "task frozen": self._freeze_task,
            "scheduler killed": lambda _fault: self._kill_airflow("scheduler"),
            "API server killed": lambda _fault: self._kill_airflow("api-server"),
            "triggerer and DAG processor killed": lambda _fault: self._kill_airflow("triggerer", "dag-processor"),
            "run cleared": self._clear,
            "triggered again": self._trigger,
            "epoch aborted": self._abort,
        }
        assert strikes.keys() == WEIGHTS.keys()
        self._strikes = strikes

    def strike(self, fault: Fault) -> Strike | None:
        """Make a fault; None if it met nothing that it could hurt."""
        phase = self._world.phase()
        # What has to be asked first, may be what an earlier fault has hit.
        with suppress(KafkaError, psycopg2.OperationalError):
            if self._strikes[fault.kind](fault):
                return Strike(kind=fault.kind, phase=phase, over_at=datetime.now(UTC))
        return None

    def mend(self, *, everything: bool = False) -> None:
        """Bring back what has been away for its time."""
        for at, back in list(self._back):
            if everything or at <= time.monotonic():
                self._back.remove((at, back))
                back()
        if everything:
            self._world.nodes.mend()

    def _later(self, seconds: float, back: Callable[[], object]) -> None:
        self._back.append((time.monotonic() + seconds, back))

    def _kill_node(self, number: int, fault: Fault) -> bool:
        """One node at a time, as two in sync are needed; it is away for the fault's seconds."""
        nodes = self._world.nodes
        if nodes.lagging():
            return False
        nodes.kill(number)
        self._later(fault.seconds, nodes.nodes[number].start)
        return True

    def _freeze_node(self, fault: Fault) -> bool:
        nodes, number = self._world.nodes, 1 + fault.victim % 3
        if nodes.lagging():
            return False
        frozen = nodes.frozen(number)
        frozen.__enter__()
        self._later(fault.seconds, lambda: frozen.__exit__(None, None, None))
        return True

    def _fail_over(self, _fault: Fault) -> bool:
        """The primary is gone for good; its place is taken, and a new standby is made of the new primary."""
        pair = self._world.pair
        if not pair.synchronous():
            return False
        pair.fail_over()
        pair.renew()
        pair.let_commits_wait()
        return True

    def _restart_postgres(self, _fault: Fault) -> bool:
        primary = self._world.pair.primary
        kill(primary)
        primary.start()
        primary.daemon.wait_ready(primary.health, 120)
        return True

    def _kill_standby(self, fault: Fault) -> bool:
        """Commits wait until it is back."""
        standby = self._world.pair.standby
        if not self._world.pair.synchronous():
            return False
        kill(standby)
        self._later(fault.seconds, standby.start)
        return True

    def _cut(self, _fault: Fault) -> bool:
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{self._world.database}' AND application_name LIKE 'epochline%'"
        )
        as_admin(self._world.pair.primary.superuser_dsn, ended)
        return True

    def _kill_those(self, pids: Sequence[int | None]) -> bool:
        for pid in filter(None, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return any(pids)

    def _tasks(self) -> list[psutil.Process]:
        """The processes that run a task's code, and those that watch over them; workers without a task are left out."""
        workers = _under(self._world.stack.airflow.pids["scheduler"], "airflow worker -- ")
        return [one for one in workers if "<idle>" not in arguments_of(one)]

    def _kill_one(self, fault: Fault, found: Sequence[psutil.Process]) -> bool:
        return self._kill_those([found[fault.victim % len(found)].pid]) if found else False

    def _freeze_task(self, fault: Fault) -> bool:
        """Some sleep beyond the patience of their scheduler, and wake up as zombies."""
        found = self._tasks()
        if not found:
            return False
        victim = found[fault.victim % len(found)]
        with suppress(psutil.NoSuchProcess):
            victim.suspend()
            self._later(fault.seconds, lambda: _resume(victim))
            return True
        return False

    def _kill_airflow(self, *names: str) -> bool:
        pids = self._world.stack.airflow.pids
        return self._kill_those([pids[name] for name in names])

    def _clear(self, fault: Fault) -> bool:
        """A run of the past goes through its tasks again."""
        answer = self._world.call("GET", f"/api/v2/dags/{NAME}/dagRuns?order_by=-run_after&limit=20")
        ended = [run["dag_run_id"] for run in (answer or {"dag_runs": ()})["dag_runs"] if run["state"] != "running"]
        if not ended:
            return False
        run = ended[fault.victim % len(ended)]
        body = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
        return self._world.call("POST", f"/api/v2/dags/{NAME}/clearTaskInstances", body) is not None

    def _trigger(self, _fault: Fault) -> bool:
        body: dict[str, object] = {"logical_date": None, "conf": {}}
        return self._world.call("POST", f"/api/v2/dags/{NAME}/dagRuns", body) is not None

    def _abort(self, _fault: Fault) -> bool:
        asked = "SELECT epoch_id FROM epochline.epochs WHERE pipeline = %s AND state IN ('PLANNED', 'PRE_COMMITTED')"
        for (epoch_id,) in self._world.query(asked, NAME):
            with suppress(AssertionError):  # It is committed meanwhile.
                self._world.command("abort", NAME, str(epoch_id), "--reason", "the nemesis's operator", "--yes")
                return True
        return False


def _under(root: int | None, word: str) -> list[psutil.Process]:
    """The descendants of a process whose command line has the word; any may end while it is looked at."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True) if root is not None else ():
            if word in arguments_of(process):
                found.append(process)
    return found


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
