"""The task that stages an epoch with Spark and seals it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from epochline.airflow.connections import adapters, epochline_errors, run_of, spark_server
from epochline.airflow.lineage import TellsLineage
from epochline.airflow.outcome import EPOCH_OF_PLAN, begin_log, epoch_of_run
from epochline.airflow.settings import settings_of_epoch
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochFencedError, EpochTimeoutError, JobLostError, rebuilt
from epochline.ports import Ledger
from epochline.protocol.epoch import EpochState
from epochline.protocol.staging import StagingTicket

_JOB = Path(__file__).parents[1] / "spark" / "main.py"
"""The job's program, as a file: spark-submit takes no module."""

_TAKEN = [name for kind in SparkSubmitOperator.__mro__ for name in signature(kind).parameters]
_NOT_DURABLE: dict[str, Any] = {"durable": False} if "durable" in _TAKEN else {}
"""A retry is a new attempt and must not attach to the driver of the attempt before. Older providers never attach."""

_KEEPS_SECRETS: dict[str, Any] = dict.fromkeys({"openlineage_inject_transport_info"}.intersection(_TAKEN), False)
"""The provider's setting would put the receiver's API key into the arguments of spark-submit, for all to see."""

_SECONDS_TO_END = 5
_SHELLS = 128
"""A shell adds this to the number of the signal that ended a process."""


class PreCommitOperator(TellsLineage, SparkSubmitOperator):
    """Stage the epoch with Spark, then seal it. Each execution is a new attempt.

    A connection of type ``spark_connect`` names a server, which runs the job at once. Any other starts a driver by
    spark-submit.

    :param pipeline: the declaration.
    :param epoch_id: id of the epoch. (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "epoch_id")

    def __init__(self, *, pipeline: Pipeline, epoch_id: str = EPOCH_OF_PLAN, **options: Any) -> None:
        # WARN: at INFO, hundreds of lines of client settings hide the few that tell what happened.
        conf = {"spark.log.level": "WARN", **pipeline.spark_conf}
        super().__init__(conn_id=pipeline.spark_connection, conf=conf, **_NOT_DURABLE, **_KEEPS_SECRETS, **options)
        self.pipeline = pipeline
        self.epoch_id = epoch_id
        self._next = "commit_epoch makes it visible next."
        if pipeline.bounds is not None:
            self._next = "commit_epoch makes it visible, once it is inside its bounds or approved."
        self._other_file: str | None = None
        self._server_job: ServerJob | None = None

    def pre_execute(self, context: Any) -> None:
        """Set the task's time-out to the epoch's."""
        self.epoch_id = epoch_of_run(context, self.pipeline, self.epoch_id)
        applies = settings_of_epoch(self.pipeline, self.dag, context, int(self.epoch_id))
        self.execution_timeout, self._other_file = applies

    def execute(self, context: Context) -> None:
        """Stage and seal the epoch; succeed without Spark if it is sealed already.

        Raises:
            AirflowFailException: also on a time-out: the next epoch takes the range, not a retry.
        """
        from epochline.coordinator import stage

        name = self.pipeline.name
        with epochline_errors():
            try:
                self._refuse_early_return()
                ledger = adapters().ledger(self.pipeline)
                self.known = begin_log(ledger, name, self.epoch_id, "stages it with Spark and seals it")
                counts = stage(
                    ledger, adapters().offsets(self.pipeline), name, int(self.epoch_id), run_of(context),
                    submit=partial(self._submit, context, ledger), stop=self.on_kill,
                )  # fmt: skip
            except AirflowTaskTimeout as timeout:
                raise EpochTimeoutError(
                    f"epoch {self.epoch_id} of {name}: was not staged and sealed within {self.execution_timeout}."
                    " abort_epoch discards what it staged, no offset moves, and the next epoch takes its range. If it"
                    " was sealed in the last moment, the next run commits it."
                ) from timeout
        if counts is None:
            done = f"is sealed already; Spark has nothing to do. {self._next}"
            self.log.info("epoch %s of %s %s", self.epoch_id, name, done)
            return
        self._note_epoch(state=EpochState.PRE_COMMITTED, counts=counts)
        self.log.info(
            "epoch %s of %s is pre-committed: %d records read, %d passed, %d skipped, %d quarantined. %s",
            self.epoch_id, name, counts.read, counts.passed, counts.skipped, counts.quarantined, self._next,
        )  # fmt: skip

    def _submit(self, context: Context, ledger: Ledger, ticket: StagingTicket) -> None:
        """Run Spark. If its job failed for a reason of ours, that reason decides whether a retry helps.

        Raises:
            EpochFencedError: an operator's abort or another attempt ended this one, and so the job.
        """
        self._note_epoch(attempt=ticket.attempt)
        if self._other_file is not None:
            raise ConfigurationError(
                f"{ticket}: its plan was made with another settings file than {socket.gethostname()} has:"
                f" {self._other_file}. Spark was not started. Give every worker the same settings file;"
                " `epochline doctor` names the one in force. The next epoch reads the same range."
            )
        program = self.application or str(_JOB)
        self.application = program
        self.name = f"epochline {ticket.pipeline} epoch {ticket.epoch_id} attempt {ticket.attempt}"
        options = {"--pipeline": ticket.pipeline, "--epoch": ticket.epoch_id, "--attempt": ticket.attempt}
        arguments = [str(part) for pair in options.items() for part in pair]
        self.application_args = arguments
        server = spark_server(self.pipeline.spark_connection)
        with self._credentials(ticket, server):
            spark = {} if self._hook is None else self._hook._connection
            in_cluster = spark.get("deploy_mode") == "cluster"
            refuse_missing(ticket, program, spark.get("spark_binary"), here=not in_cluster)
            try:
                if server is None:
                    super().execute(context)
                else:
                    self._server_job = ServerJob(self.log.info)
                    self._server_job.run(program, arguments)
            except AirflowException as failure:
                with ledger.transaction() as tx:
                    epoch = tx.epochs.lock(ticket.pipeline, ticket.epoch_id)
                    attempt = tx.attempts.live(epoch)
                if attempt is None or attempt.attempt_id != ticket.attempt_id:
                    # The job noticed the fence before the next renewal of the lease did.
                    by = f"the epoch was aborted ({epoch.error})" if epoch.state is EpochState.ABORTED else "was fenced"
                    raise EpochFencedError(f"{ticket}: {by} while its job ran. Nothing it wrote counts.") from None
                if attempt.error is None:
                    # The hook of spark-submit repeats its command, and ends with the code.
                    code = re.search(r"Error code is: (-?\d+)", str(failure))
                    raise JobLostError(
                        f"{ticket}: {how_it_ended(int(code[1])) if code else failure}, and it left no reason in the"
                        " ledger. If the output above shows none either, look for what ends processes on the driver's"
                        " machine, such as its memory limit."
                    ) from failure
                message = attempt.error.removeprefix(f"{attempt.error_class}: ")
                ours = rebuilt(attempt.error_class, message, attempt.error_command)
                raise ours or AirflowException(f"{ticket}: {attempt.error}") from None

    def _note_epoch(self, **changes: Any) -> None:
        """Keep for lineage what the attempt changed."""
        if self.known is not None and self.known.epoch is not None:
            self.known = replace(self.known, epoch=replace(self.known.epoch, **changes))

    def on_kill(self) -> None:
        """End the job, wherever it runs."""
        if self._server_job is not None:
            self._server_job.stop()
        if self._hook is not None:
            # The operator's own ends an application on YARN by its web address alone, and leaves spark-submit running.
            self._hook.on_kill()

    def _refuse_early_return(self) -> None:
        """Refuse a setting that lets spark-submit return before the job has ended: the seal would come too early."""
        for setting, value in (self.conf or {}).items():
            if setting.lower().endswith("waitappcompletion") and str(value).lower() == "false":
                raise AirflowFailException(
                    f"{setting}=false: pre_commit must wait until the job has ended. Remove it from spark_conf."
                )

    @contextmanager
    def _credentials(self, ticket: StagingTicket, server: str | None) -> Iterator[None]:
        """Hand the driver its connection details in a file that only its owner can read.

        In cluster mode the driver runs on another machine, where EPOCHLINE_CREDENTIALS must name such a file.
        """
        if server is None:
            # The hook looks up a connection, which the job's environment no longer allows.
            self._hook = self._get_hook()
            if self._hook._connection["deploy_mode"] == "cluster":
                yield
                return
        from epochline.airflow.handover import credentials_file, environment_of_job

        credentials = adapters().job_credentials(self.pipeline, ticket)
        contents: dict[str, Any] = {
            "postgres": {"dsn": credentials.dsn}, "kafka": credentials.kafka or None, "kafkas": credentials.kafkas,
            "registries": credentials.registries,
            "sources": {name: asdict(connection) for name, connection in credentials.source_connections.items()},
            "spark": {} if server is None else {"server": server},
        }  # fmt: skip
        with credentials_file(contents) as path, environment_of_job(EPOCHLINE_CREDENTIALS=str(path)):
            yield


def refuse_missing(ticket: StagingTicket, program: str, spark_submit: str | None, *, here: bool = True) -> None:
    """Refuse an attempt for which a file is missing: no retry finds it.

    Args:
        ticket: of the attempt, whose reason the ledger keeps.
        program: path or URI of the job's main program. Only a path, or a URI ``file:``, is a file of this machine.
        spark_submit: the command that starts the driver; None if the task starts the program itself.
        here: whether the program is read on this machine.

    Raises:
        ConfigurationError: with the path of the program, or the name of the command.
    """
    scheme = urlsplit(program).scheme
    path = urlsplit(program).path if scheme == "file" else program
    missing = [program] if here and scheme in ("", "file") and not Path(path).is_file() else []
    if spark_submit is not None and shutil.which(spark_submit) is None:
        missing.append(f"the command {spark_submit} (PATH is {os.environ.get('PATH')})")
    if missing:
        raise ConfigurationError(
            f"{ticket}: {' and '.join(missing)} cannot be found on {socket.gethostname()}. Spark was not started."
            " Put it on every worker that runs pre_commit; the next epoch reads the same range."
        )


class ServerJob:
    """One job at a time. The process is a child of the task, which ends with the task."""

    def __init__(self, log: Callable[[str], None]) -> None:
        """Describe a job; each line of its output goes to ``log``."""
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self, program: str, arguments: Sequence[str]) -> None:
        """Run the job to its end, and copy its output to the task's log; `AirflowException` if it failed."""
        self._process = subprocess.Popen(
            [sys.executable, program, *arguments], env=os.environ.copy(), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self._process as process:
            try:
                for line in process.stdout or ():
                    self._log(line.rstrip())
            except BaseException:
                # A time-out, for instance. The end of the block waits for the process.
                self.stop()
                raise
        if process.returncode != 0:
            raise AirflowException(how_it_ended(process.returncode))

    def stop(self) -> None:
        """End the job that runs; the server interrupts its query."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
        process.kill()


def how_it_ended(code: int) -> str:
    """Say how a driver ended, given its exit code, or its signal as Python or a shell reports it."""
    number = -code if code < 0 else code - _SHELLS
    try:
        return f"the driver of the Spark job was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"the driver of the Spark job ended with exit code {code}"
