"""Epochs in this process: plan, begin, Spark, seal, commit, with the lease kept and an abort when something fails."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from epochline.cli import connections, database, printing
from epochline.config.resolve import resolve_settings
from epochline.config.settings_file import file_settings
from epochline.coordinator import LEASE, CommitResult, Plan, PlanOutcome, abort, begin, commit, plan, publish, seal
from epochline.coordinator.lease import keep_lease_alive
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochError, EpochlineError
from epochline.protocol.epoch import AbortOutcome, Epoch, EpochKind, Interval, Run
from epochline.protocol.staging import StagingTicket

_TERMINATED = 143
_WITHOUT_RANGES = {EpochKind.REQUEUE: "records of the quarantine", EpochKind.IDLE: "nothing, windows close"}


class Execution:
    """One pipeline's epochs, one after another, with one Spark session that is started when it is first needed.

    Args:
        pipeline: the declaration.
        master: Spark's master.
        note: kept with each epoch.
        interval: read up to its end only, as a backfill run of Airflow does.
        planned_by: plans the epochs of an operator's action; the next ranges are planned where it is not given.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        master: str,
        *,
        note: str | None = None,
        interval: Interval | None = None,
        planned_by: Callable[[Run], Plan] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._master = master
        self._note = note
        self._interval = interval
        self._planned_by = planned_by
        self.found: PlanOutcome | None = None
        """What the last plan found."""
        self._ledger = connections.ledger_of(pipeline)
        self._offsets = connections.offsets_of(pipeline)
        self._started = datetime.now(UTC)
        self._epochs = 0
        self._exit = ExitStack()
        self._spark: Any = None

    def __enter__(self) -> Execution:
        # A task of a scheduler or a container is ended by SIGTERM: that too aborts the epoch.
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
        self._exit.callback(signal.signal, signal.SIGTERM, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.__exit__(kind, error, trace)

    def next_epoch(self, limit: int | None = None) -> CommitResult | None:
        """Plan and commit one epoch; None where there is nothing to read.

        Raises:
            EpochlineError: it failed; its epoch was aborted, or is pre-committed and will be committed by a later run.
        """
        run = self._next_run()
        epoch = self._planned(run, limit)
        if epoch is None:
            self.publish()
            return None
        try:
            self._stage(epoch, run)
            receipt = commit(self._ledger, self._offsets, self._pipeline.name, epoch.epoch_id)
        except BaseException as error:
            self._abort(epoch, run, error)
            raise
        self.publish()
        return receipt

    def publish(self) -> None:
        """Show what is committed in the sinks that follow the commit.

        Raises:
            SinkError: a sink is down or refuses; the epoch is committed, and `epochline publish` goes on.
        """
        publish(self._ledger, self._pipeline, report=lambda one: printing.progress(str(one)))

    @contextmanager
    def staged(self) -> Iterator[Epoch]:
        """Plan and seal one epoch, which is aborted at the end of the block unless it is committed there.

        Raises:
            EpochlineError: it failed; its epoch was aborted.
        """
        run = self._next_run()
        epoch = self._planned(run, None)
        if epoch is None:
            raise EpochError(f"{self._pipeline.name}: nothing was planned.")
        reason = "staged, and not committed"
        try:
            self._stage(epoch, run)
            yield epoch
        except BaseException as error:
            reason = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else str(error)
            raise
        finally:
            with suppress(EpochlineError):
                self._stop_quietly()
                abort(self._ledger, epoch.pipeline, epoch.epoch_id, run, reason=reason, by_operator=True)

    def _planned(self, run: Run, limit: int | None) -> Epoch | None:
        self._say_who_is_waited_for(run)
        planned = self._plan(run, limit)
        for text in planned.notes:
            printing.progress(text)
        epoch, self.found = planned.epoch, planned.outcome
        if epoch is None:
            return None
        ranges = ", ".join(str(one) for one in planned.ranges) or _WITHOUT_RANGES[epoch.kind]
        printing.progress(f"{epoch} is {planned.outcome.replace('_', ' ')}: {ranges}")
        return epoch

    def _next_run(self) -> Run:
        # An epoch belongs to one run, so each gets a run of its own; the ledger carries what a killed one left.
        self._epochs += 1
        run_id = f"cli__{self._started:%Y-%m-%dT%H:%M:%S.%f}__{os.getpid()}__{self._epochs}"
        return Run(dag_id="cli", run_id=run_id, host=socket.gethostname())

    def _plan(self, run: Run, limit: int | None) -> Plan:
        if self._planned_by is not None:
            return self._planned_by(run)
        return plan(
            self._ledger,
            self._offsets,
            self._pipeline,
            run,
            record_limit=limit,
            note=self._note,
            writers=connections.writers_of(self._pipeline, self._master),
            interval=self._interval,
            settings=resolve_settings(self._pipeline, file=file_settings()),
        )

    def _say_who_is_waited_for(self, run: Run) -> None:
        with database.session(connections.postgres_dsn(self._pipeline.postgres_connection)) as opened:
            for one in database.ask(opened, "lease_of_unfinished_epoch", pipeline=self._pipeline.name):
                if one["state"] == "PLANNED" and one["lease_alive"] and one["run_id"] != run.run_id:
                    printing.progress(
                        f"epoch {one['epoch_id']} belongs to run {one['run_id']} of {one['dag_id']} on {one['host']};"
                        f" waiting for it, or for its lease to end ({one['lease_seconds']:.0f} s)"
                    )

    def _stage(self, epoch: Epoch, run: Run) -> None:
        ticket = begin(self._ledger, self._pipeline.name, epoch.epoch_id, run, lease=LEASE)
        if ticket is None:
            return
        begun = time.monotonic()
        with keep_lease_alive(self._ledger, ticket, run, self._stop_jobs):
            self._run_job(ticket)
            counts = seal(self._ledger, self._offsets, ticket, run)
        printing.progress(
            f"{epoch} is pre-committed after {printing.duration(time.monotonic() - begun)}: {counts.read} records read"
        )

    def _run_job(self, ticket: StagingTicket) -> None:
        from epochline.spark.credentials import JobCredentials
        from epochline.spark.job import run as run_job

        credentials = JobCredentials(
            dsn=self._writer_dsn(ticket),
            kafka=connections.kafka_settings(self._pipeline.source.connection),
            registries=connections.registries_of(self._pipeline),
        )
        log = _spark_log()
        spark = self._session(log)
        try:
            run_job(spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, credentials)
        except EpochlineError:
            raise
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), "")
            raise EpochError(f"{ticket}: Spark failed ({type(error).__name__}: {first}); its log is {log}") from error

    def _writer_dsn(self, ticket: StagingTicket) -> str:
        from epochline.postgres.ledger.writer import check_writer

        dsn = connections.postgres_dsn(self._pipeline.postgres_connection)
        if self._pipeline.writer_connection is None:
            return dsn
        writer = connections.postgres_dsn(self._pipeline.writer_connection)
        check_writer(dsn, writer, ticket)
        return writer

    def _session(self, log: Path) -> Any:
        if self._spark is None:
            from epochline.local.spark_home import spark_home
            from epochline.spark.session import session

            printing.progress(f"starting Spark on {self._master}; its log is {log}")
            self._spark = self._exit.enter_context(
                session(
                    f"epochline {self._pipeline.name}",
                    self._master,
                    home=spark_home(),
                    jars=_jars(),
                    log=log,
                    conf=self._pipeline.spark_conf,
                )
            )
        return self._spark

    def _stop_jobs(self) -> None:
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def _abort(self, epoch: Epoch, run: Run, error: BaseException) -> None:
        """Settle the epoch, also under Ctrl-C; what cannot be settled now is settled by the next run."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(EpochlineError):
                self._stop_quietly()
                reason = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else str(error)
                outcome = abort(self._ledger, epoch.pipeline, epoch.epoch_id, run, reason=reason)
                if outcome is AbortOutcome.LEFT_FOR_RECOVERY:
                    printing.progress(f"{epoch} is pre-committed: the next run of the pipeline commits it")
                elif outcome is AbortOutcome.ABORTED:
                    printing.progress(f"{epoch} was aborted; no offset moved, the next run reads its range again")
        finally:
            signal.signal(signal.SIGINT, before)

    def _stop_quietly(self) -> None:
        # Whatever state Spark is in, the abort must come: fencing keeps out what still writes.
        with suppress(Exception):
            self._stop_jobs()


def _jars() -> list[Path]:
    named = os.environ.get("EPOCHLINE_SPARK_JARS")
    if named:
        return [Path(jar) for jar in named.split(",")]
    from epochline.local.jars import spark_jars

    return spark_jars(printing.progress)


@cache
def _spark_log() -> Path:
    """Where Spark's noise of this process goes: a file that nobody else can read, or have put there beforehand."""
    from epochline.local.home import Home

    home = Home()
    if home.logs.is_dir():
        return home.logs / "spark-cli.log"
    handle, name = tempfile.mkstemp(prefix="epochline-spark-", suffix=".log")
    os.close(handle)
    return Path(name)
