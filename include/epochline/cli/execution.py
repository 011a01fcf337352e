"""Epochs in this process: plan, stage, commit, publish; abort if one of them fails."""

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

from epochline.cli import connections, database, printing
from epochline.config.connections import spark_writers
from epochline.coordinator import CommitResult, Plan, PlanOutcome, abort, commit, publish, stage
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochAwaitsApprovalError, EpochError, EpochlineError, RecordsRefusedError, StackError
from epochline.protocol.epoch import AbortOutcome, Epoch, EpochKind, Run
from epochline.protocol.quantities import counted
from epochline.protocol.staging import StagingTicket

_TERMINATED = 143
_WITHOUT_RANGES = {EpochKind.REQUEUE: "records of the quarantine", EpochKind.IDLE: "nothing, windows close"}


class Execution(ExitStack):
    """Epochs of one pipeline, one after another, with one Spark session that is started when an epoch first needs it.

    Args:
        pipeline: the declaration.
        plan: plans an epoch, given the run and the number of sessions that write.
        master: Spark's master; that of the pipeline's Spark connection if not given.
    """

    def __init__(self, pipeline: Pipeline, plan: Callable[[Run, int | None], Plan], master: str | None = None) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._plan_epoch = plan
        self._master = master or connections.spark_master(pipeline.spark_connection)
        self.outcome: PlanOutcome | None = None
        """What the last plan decided."""
        self._ledger = connections.adapters().ledger(pipeline)
        self._offsets = connections.adapters().offsets(pipeline)
        self._started = datetime.now(UTC)
        self._epochs = 0
        self._interrupted: BaseException | None = None
        self._is_starting = False
        self._spark: Any = None
        self._session = self.enter_context(ExitStack())

    def __enter__(self) -> Self:
        # Schedulers and containers end a task by SIGTERM: abort the epoch then too.
        for number in (signal.SIGTERM, signal.SIGINT):
            self.callback(signal.signal, number, signal.signal(number, self._interrupt))
        return self

    def _interrupt(self, number: int, _frame: object) -> None:
        """While Spark starts, only the second signal raises at once.

        In the middle of a fork or an import Python ignores the error, and a JVM that nobody knows yet would be left.
        """
        waits = self._is_starting and self._interrupted is None
        self._interrupted = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(_TERMINATED)
        if not waits:
            raise self._interrupted

    def epochs(self, repeats: Callable[[], bool] | None, *, as_json: bool) -> list[CommitResult]:
        """Run one epoch, or epochs until there is nothing to read or ``repeats`` says no, and print each.

        Raises as `next_epoch`.
        """
        committed = []
        while (result := self.next_epoch(last=repeats is None)) is not None:
            committed.append(result)
            if not as_json:
                printing.say(str(result))
            if repeats is None or not repeats():
                break
        if as_json:
            printing.say(printing.as_json([_as_dict(result.epoch) for result in committed]))
        return committed

    def next_epoch(self, *, last: bool) -> CommitResult | None:
        """Plan, stage, commit and publish one epoch; None if there is nothing to read. Spark ends with the ``last``.

        Raises:
            EpochlineError: the epoch was aborted, or is pre-committed and a later run commits it.
            SinkError: a sink is down or refuses; the epoch is committed, and `epochline publish` continues.
        """
        run = self._next_run()
        epoch = self._plan(run)
        result = None
        if epoch is not None:
            try:
                self._stage(epoch, run)
                if last:
                    self._end_spark()
                result = commit(self._ledger, self._offsets, epoch.pipeline, epoch.epoch_id)
            except EpochAwaitsApprovalError:
                raise  # also where on_cancel deletes: nobody cancelled it
            except BaseException as error:
                self._abort(epoch, run, error)
                raise
        publish(self._ledger, self._pipeline, report=lambda receipt: printing.progress(str(receipt)))
        return result

    @contextmanager
    def staged(self) -> Iterator[Epoch]:
        """Plan and seal one epoch; abort it at the end of the block unless the block committed it.

        Raises:
            EpochlineError: the epoch failed and was aborted.
        """
        run = self._next_run()
        epoch = self._plan(run)
        if epoch is None:
            raise EpochError(f"{self._pipeline.name}: nothing was planned.")
        reason = "staged, and not committed"
        try:
            self._stage(epoch, run)
            yield epoch
        except BaseException as error:
            reason = _reason(error)
            raise
        finally:
            with suppress(EpochlineError):
                abort(self._ledger, epoch.pipeline, epoch.epoch_id, run, reason=reason, by_operator=True)

    def _next_run(self) -> Run:
        # An epoch belongs to one run. A killed process leaves its run's epoch to the ledger, so each epoch gets a run.
        self._epochs += 1
        run_id = f"cli__{self._started:%Y-%m-%dT%H:%M:%S.%f}__{os.getpid()}__{self._epochs}"
        return Run(dag_id="cli", run_id=run_id, host=socket.gethostname())

    def _plan(self, run: Run) -> Epoch | None:
        with database.session(connections.adapters().postgres_dsn(self._pipeline.postgres_connection)) as ledger:
            for row in database.ask(ledger, "lease_of_unfinished_epoch", pipeline=self._pipeline.name):
                if row["state"] == "PLANNED" and row["lease_alive"] and row["run_id"] != run.run_id:
                    printing.progress(
                        f"epoch {row['epoch_id']} belongs to run {row['run_id']} of {row['dag_id']} on {row['host']};"
                        f" waiting for it, or for its lease to end ({printing.duration(round(row['lease_seconds']))})"
                    )
        planned = self._plan_epoch(run, spark_writers(self._pipeline.spark_conf, self._master))
        for text in planned.notes:
            printing.progress(text)
        self.outcome = planned.outcome
        if planned.epoch is not None:
            ranges = ", ".join(map(str, planned.ranges)) or _WITHOUT_RANGES[planned.epoch.kind]
            printing.progress(f"{planned.epoch} is {planned.outcome.replace('_', ' ')}: {ranges}")
        return planned.epoch

    def _stage(self, epoch: Epoch, run: Run) -> None:
        begun = time.monotonic()
        while True:
            try:
                counts = stage(
                    self._ledger, self._offsets, epoch.pipeline, epoch.epoch_id, run,
                    submit=self._run_job, stop=self._stop_jobs,
                )  # fmt: skip
                break
            except RecordsRefusedError as error:
                # Each of these attempts sets further records aside, so one is the last.
                printing.progress(str(error))
        if counts is not None:
            took = printing.duration(time.monotonic() - begun)
            printing.progress(f"{epoch} is pre-committed after {took}: {counted(counts.read, 'record')} read")

    def _run_job(self, ticket: StagingTicket) -> None:
        from epochline.spark.job import run as run_job

        credentials = connections.adapters().job_credentials(self._pipeline, ticket)
        if self._spark is None:
            self._is_starting = True
            try:
                self._spark = start_spark(self._session, self._pipeline, self._master)
            finally:
                self._is_starting = False
        if self._interrupted:
            raise self._interrupted
        try:
            run_job(self._spark, ticket.pipeline, ticket.epoch_id, ticket.attempt, credentials)
        except Exception as error:
            self._stop_jobs()
            if self._interrupted:
                # Ctrl-C also ends Spark's workers, and the failure of their job may arrive first.
                raise self._interrupted from None
            if isinstance(error, EpochlineError):
                raise
            from epochline.spark.failure import class_and_message

            name, message = class_and_message(error)
            raise EpochError(f"{ticket}: Spark failed ({name}: {message}); its log is {spark_log()}") from error

    def _end_spark(self) -> None:
        """Stop Spark while the commit works: a second in which this process would only wait."""
        self._spark = None
        ending = self.enter_context(ThreadPoolExecutor(1))
        self.callback(ending.submit(self._session.pop_all().close).result)

    def _stop_jobs(self) -> None:
        # Spark may be in any state, and the abort must follow: the fence keeps out a job that still writes.
        if self._spark is not None:
            with suppress(Exception):
                self._spark.sparkContext.cancelAllJobs()

    def _abort(self, epoch: Epoch, run: Run, error: BaseException) -> None:
        """Abort the epoch, undisturbed by Ctrl-C. If the abort fails, the next run settles the epoch."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(EpochlineError):
                outcome = abort(self._ledger, epoch.pipeline, epoch.epoch_id, run, reason=_reason(error))
                if outcome is AbortOutcome.LEFT_FOR_RECOVERY:
                    printing.progress(f"{epoch} is pre-committed: the next run of the pipeline commits it")
                elif outcome is AbortOutcome.ABORTED:
                    printing.progress(f"{epoch} was aborted; no offset moved, the next run reads its range again")
        finally:
            signal.signal(signal.SIGINT, before)


def _as_dict(epoch: Epoch) -> dict[str, Any]:
    counts = epoch.counts
    return {
        "pipeline": epoch.pipeline,
        "epoch_id": epoch.epoch_id,
        "state": str(epoch.state),
        "records_read": counts.read,
        "records_passed": counts.passed,
        "records_skipped": counts.skipped,
        "records_quarantined": counts.quarantined,
        "rows_written": epoch.rows_written,
        "committed_at": epoch.committed_at,
    }


def _reason(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else str(error)


def start_spark(block: ExitStack, pipeline: Pipeline, master: str) -> Any:
    """A session of Spark that ends with the block.

    Raises:
        StackError: Spark does not start; the message names its log.
    """
    from epochline.cli.printing import not_started
    from epochline.local.class_archive import class_options
    from epochline.local.spark_home import spark_home
    from epochline.spark.session import session

    log = spark_log()
    printing.progress(f"starting Spark on {master}; its log is {log}")
    started = session(
        f"epochline {pipeline.name}", master, home=spark_home(), driver_options=class_options(), log=log,
        conf=pipeline.spark_conf,
    )  # fmt: skip
    try:
        return block.enter_context(started)
    except Exception as error:
        raise StackError(not_started(error, log)) from error


@cache
def spark_log() -> Path:
    """The file for Spark's own output of this process. No other account can read it, or create it beforehand."""
    from epochline.local.home import Home

    home = Home()
    if home.logs.is_dir():
        return home.logs / "spark-cli.log"
    handle, name = tempfile.mkstemp(prefix="epochline-spark-", suffix=".log")
    os.close(handle)
    return Path(name)
