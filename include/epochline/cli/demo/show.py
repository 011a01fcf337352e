"""The command `epochline demo`, and the steps of the demo."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.rule import Rule

from epochline.cli import database, printing
from epochline.cli.airflow_access import TIMEOUT_SECONDS, access_to
from epochline.cli.database import Session
from epochline.cli.declarations import create_declared
from epochline.cli.demo.driver import Caught, kill_while_staging
from epochline.cli.demo.fed_logs import PARTITIONS, FedLogs
from epochline.cli.ledger import show_attempts, show_epochs
from epochline.cli.overview import records_behind
from epochline.cli.shipped import shipped_folder
from epochline.errors import ConfigurationError, StackError
from epochline.kafka.feed import feed
from epochline.local.postgres import client_environment
from epochline.local.stack import Stack

if TYPE_CHECKING:
    from epochline.cli.airflow_api import AirflowApi

LINES = 250_000
PIPELINE = TOPIC = "access_log"
_SEED = 7
_FEED_SECONDS = 75
_FIRST_EPOCH = 100_000
"""Lines in the first epoch."""
_ROUNDS = 4
_PATIENCE_SECONDS = 600


def demo(
    log: Annotated[
        Path | None, typer.Option(help="Your own access log; a deterministic one is generated if not given.")
    ] = None,
    lines: Annotated[int, typer.Option(min=1000, help="Length of the generated log, in lines.")] = LINES,
) -> None:
    """Feed an access log while Airflow runs epochs, kill a Spark driver, and compare the result with the log.

    Starts the stack if it does not run, and leaves it running. May be repeated, even after an interruption: each demo
    adds a log, and the result covers all logs. Exit code 0: the target has exactly the lines of the logs; 1: it does
    not, or a step failed; 2: the logs could not be compared, or wrong use; 130: interrupted.
    """
    code = Show(log, lines).run()
    if code:
        raise typer.Exit(code)


class Show:
    """One demo, with the user's log, or a generated one of so many lines."""

    def __init__(self, log: Path | None, lines: int) -> None:
        shipped_folder()  # refuses before the stack is started
        if log is not None and not log.is_file():
            raise ConfigurationError(f"{log} is not a file that can be read.")
        self._log = log
        self._lines = lines
        self._stack = Stack()

    def run(self) -> int:
        """Run every step; return the verdict's exit code."""
        _step("the stack: PostgreSQL, Kafka, Spark and Airflow", f"home: {self._stack.home}")
        self._stack.up(report=printing.say)
        create_declared(printing.say)
        from epochline.cli.airflow_api import AirflowApi

        api = AirflowApi(access_to(self._stack), TIMEOUT_SECONDS)
        _wait(lambda: api.dag(PIPELINE) is not None, f"Airflow to find DAG {PIPELINE}", 120)
        fed = FedLogs(self._stack.home.path("demo"), TOPIC, self._stack.kafka.bootstrap_servers)
        for note in fed.settle():
            printing.say(note)
        with database.session(self._stack.postgres.dsn()) as ledger:
            caught = self._feed_and_kill(api, fed, ledger)
            self._show_recovery(ledger, caught)
            self._until_caught_up(ledger)
            return self._conclude(ledger, fed)

    def _feed_and_kill(self, api: "AirflowApi", fed: FedLogs, ledger: Session) -> Caught:
        """Feed a log and kill a driver. If every driver was too fast, feed another log all at once."""
        for number in range(_ROUNDS):
            # Lines that are fed while the DAG is paused go into one epoch.
            api.pause(PIPELINE, True)
            log = self._next_log(fed, number)
            lines = sum(1 for _ in log.open("rb"))
            rate = max(500.0, lines / _FEED_SECONDS) if number == 0 else None
            _step(
                f"feeding {printing.number(lines)} lines into topic {TOPIC}"
                f"{f', {printing.number(rate)} a second' if rate else ''}",
                f"log: {log}",
                "see it:  `epochline lag access_log` (in another terminal, at any time)",
            )
            fed.begin(log)
            feeding = Feeding(self._stack.kafka.bootstrap_servers, log, TOPIC, partitions=PARTITIONS, rate=rate)
            enough = min(_FIRST_EPOCH, lines // 2) if number == 0 else lines
            _wait(lambda: feeding.done or feeding.lines >= enough, "the first lines to be fed")  # noqa: B023
            if number > 0:
                _wait(lambda: feeding.done, "the log to be fed")  # noqa: B023
            _step(
                "Airflow runs epochs; one Spark driver gets killed while it stages",
                f"Airflow: {self._stack.airflow.url}/dags/{PIPELINE}",
                "see it:  `epochline sql 'SELECT * FROM epochline.attempts ORDER BY started_at DESC LIMIT 5'`",
            )
            api.pause(PIPELINE, False)
            caught = kill_while_staging(
                ledger,
                str(self._stack.home.root),
                PIPELINE,
                give_up=lambda: feeding.done and self._nothing_left(ledger),  # noqa: B023
                missed=lambda epoch_id: printing.say(
                    f"the driver of epoch {epoch_id} was too fast to be killed; trying the next epoch"
                ),
            )
            if caught is not None:
                self._show_kill(caught)
            _wait(lambda: feeding.done, "the rest of the log to be fed")  # noqa: B023
            fed.finish()
            if caught is not None:
                return caught
            printing.say("every driver ended before it could be killed; trying again with more lines at once")
        raise StackError(
            f"in {_ROUNDS} rounds no Spark driver could be killed before its epoch was sealed: this machine is too fast"
            " for the log. Nothing is wrong with the pipeline; run the demo again with more --lines."
        )

    def _next_log(self, fed: FedLogs, number: int) -> Path:
        target = fed.draft()
        if self._log is not None and number == 0:
            shutil.copyfile(self._log, target)
            return target
        from epochline_examples.access_log.maker import lines

        seed = _SEED + len(fed)
        count = self._lines if number == 0 else max(self._lines, 2 * _FIRST_EPOCH) * number
        _step(f"making a log of {count} lines, the same every time (seed {seed})")
        with target.open("wb") as out:
            out.writelines(line + b"\n" for line in lines(count, seed))
        return target

    def _nothing_left(self, ledger: Session) -> bool:
        unfinished = database.ask(ledger, "lease_of_unfinished_epoch", pipeline=PIPELINE)
        return not unfinished and not records_behind(PIPELINE)

    def _show_kill(self, caught: Caught) -> None:
        _step(
            f"killed: the Spark driver of epoch {caught.epoch_id}, attempt {caught.attempt} (process {caught.pid},"
            " SIGKILL)"
        )
        received = max(part["received"] or 0 for part in caught.staged)
        printing.say(f"the epoch reads {caught.planned:,} offsets; parts with {received:,} of them are in staging:")
        printing.table(
            ("staging of", "parts", "rows"), [(part["sink"], part["parts"], part["rows"]) for part in caught.staged]
        )
        printing.say("no reader of the target sees any of them")

    def _show_recovery(self, ledger: Session, caught: Caught) -> None:
        _step(
            "the pipeline recovers by itself",
            f"Airflow starts the task again: attempt {caught.attempt + 1} fences attempt {caught.attempt} and reads"
            " the same range",
        )
        states: list[tuple[str, int]] = []

        def settled() -> bool:
            (epoch,) = database.ask(ledger, "outcome_of_epoch", pipeline=PIPELINE, epoch=caught.epoch_id)
            state = (epoch["state"], epoch["attempt"])
            if state not in states:
                states.append(state)
                printing.say(f"epoch {caught.epoch_id}: {state[0]}, attempt {state[1]}")
            return bool(epoch["state"] in ("COMMITTED", "ABORTED"))

        _wait(settled, f"epoch {caught.epoch_id} to be settled")
        if states[-1][0] == "ABORTED":
            printing.say("its run gave up; the next run reads the range again")
        attempts = database.ask(ledger, "page_attempts", pipeline=PIPELINE, epoch_id=caught.epoch_id, limit=None)
        show_attempts(attempts[::-1])
        for write in database.ask(ledger, "fenced_writes", attempt_id=caught.attempt_id):
            printing.say(
                f"attempt {caught.attempt}, session {write['backend_pid']} on {write['host']}: {write['what']}"
            )

    def _until_caught_up(self, ledger: Session) -> None:
        _step("waiting until every line is committed")
        lags: list[int] = []

        def caught_up() -> bool:
            behind = records_behind(PIPELINE)
            if not lags or lags[-1] != behind:
                lags.append(behind)
                printing.say(f"{printing.number(behind)} records behind")
            return behind == 0 and not database.ask(ledger, "lease_of_unfinished_epoch", pipeline=PIPELINE)

        _wait(caught_up, "the pipeline to catch up", every=1.0)

    def _conclude(self, ledger: Session, fed: FedLogs) -> int:
        _step("the verdict, by code that imports nothing of epochline")
        for path in fed.paths:
            printing.say(f"produced: {path}")
        code = verdict(fed.paths, "epochline", client_environment(self._stack.postgres))
        _step("the ledger's last epochs")
        show_epochs(database.ask(ledger, "last_epochs", pipeline=PIPELINE, epoch=None, limit=8))
        _step("the stack stays up")
        airflow = self._stack.airflow
        printing.say(f"Airflow     {airflow.url}/dags/{PIPELINE}   user admin, password in {airflow.password_file}")
        printing.say(f"PostgreSQL  {self._stack.postgres.dsn(with_password=False)}   `epochline sql`")
        printing.say(f"Kafka       {self._stack.kafka.bootstrap_servers}")
        printing.say("again       `make demo`, or `epochline demo`")
        printing.say("to end it   `make down`, or `epochline down` (--wipe deletes all data)")
        return code


def _step(title: str, *lines: str) -> None:
    console = printing.console()
    console.print()
    console.print(Rule(title, align="left", style="bold cyan"))
    for line in lines:
        printing.say(line)


def _wait(ready: Callable[[], Any], awaited: str, seconds: float = _PATIENCE_SECONDS, every: float = 0.2) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise StackError(
                f"waited {seconds:.0f} s for {awaited}, in vain. Look at `epochline ledger` and at the task logs in"
                " Airflow. The stack is left running, and the demo can be run again."
            )
        time.sleep(every)


class Feeding:
    """A log that is being fed. The feed stops when this process ends; `FedLogs` then knows which lines were fed."""

    def __init__(self, bootstrap: str, log: Path, topic: str, *, partitions: int, rate: float | None) -> None:
        self._error: BaseException | None = None
        self.lines = 0
        """Lines handed to the producer so far."""

        def run() -> None:
            try:
                feed(bootstrap, log, topic, partitions, rate, self._count)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="epochline-demo-feed", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the feed has ended. Raises the error that ended it early."""
        ended = not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return ended

    def _count(self, _read: int) -> None:
        self.lines += 1


def verdict(logs: Sequence[Path], service: str, environment: Mapping[str, str]) -> int:
    """Run ``access_log_check`` on every log that was fed. Its output goes to this process's output.

    Args:
        logs: files of the produced lines.
        service: name of the target database in ``PGSERVICEFILE``, which ``environment`` has.
        environment: ``PGSERVICEFILE`` and ``PGPASSFILE``.

    Returns:
        0: the target holds exactly what was produced. 1: it does not. 2: the comparison failed.
    """
    log_options = [argument for log in logs for argument in ("--log", str(log))]
    command = [sys.executable, "-m", "epochline_examples.access_log.check", *log_options, "--service", service]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    sys.stdout.flush()
    path = {"PYTHONPATH": str(shipped_folder() / "include")}
    return subprocess.run(command, env={**inherited, **environment, **path}, check=False).returncode
