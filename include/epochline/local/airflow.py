"""Airflow 3.3.2 with the LocalExecutor: one process each for API server, scheduler, DAG processor and triggerer."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version

import psutil

from epochline.errors import StackError
from epochline.local import credentials
from epochline.local.airflow_api import SILENT_SCHEDULER, AirflowApi
from epochline.local.airflow_settings import AirflowSettings
from epochline.local.home import write_private
from epochline.local.ports import LOOPBACK, Ports, is_listening
from epochline.local.process import Daemon

# Without the log server, which listens on all addresses: the API server reads the log files directly.
_PROCESSES: Mapping[str, Sequence[str]] = {
    "api-server": (), "scheduler": ("--skip-serve-logs",), "dag-processor": (), "triggerer": ("--skip-serve-logs",),
}  # fmt: skip
# Variables of the caller's shell for another Airflow or Spark must not leak into this one.
_FOREIGN = ("AIRFLOW", "SPARK_", "PYSPARK_", "PYTEST_", "PYTHONPATH", "_AIRFLOW")


class Airflow:
    """The four Airflow processes of one home."""

    name = "airflow"

    def __init__(self, settings: AirflowSettings, ports: Ports) -> None:
        self._home = settings.home
        self._ports = ports
        self._settings = settings
        self.folder = self._home.path("airflow")
        self.password_file = settings.password_file
        """The file with the password of the user `admin`, as Airflow's simple auth manager reads it."""
        signals = ((signal.SIGTERM, 15), (signal.SIGKILL, 5))
        self.daemons = {
            name: Daemon(settings.home, f"airflow-{name}", stop_signals=signals, idle=_is_idle_worker)
            for name in _PROCESSES
        }

    @property
    def port(self) -> int:
        """The port of the API server and the user interface on 127.0.0.1."""
        return self._ports.get(self.name)

    @property
    def url(self) -> str:
        """The URL of the user interface and the REST API."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pids(self) -> dict[str, int | None]:
        """The pid of each process, None if it does not run."""
        return {name: daemon.pid for name, daemon in self.daemons.items()}

    def version(self) -> str:
        """The installed version of Airflow."""
        return version("apache-airflow")

    def token(self) -> str:
        """A token of the user `admin` for the REST API."""
        return AirflowApi(self.url, timeout=20).token("admin", credentials.require(self._home).airflow_admin)

    def environment(self) -> dict[str, str]:
        """The variables that the processes get in addition to the caller's environment. They hold passwords."""
        return self._settings.environment(self.port)

    def whole_environment(self) -> dict[str, str]:
        """The caller's environment without another Airflow's or Spark's variables, and `environment`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        return {**kept, **self.environment()}

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Airflow's own program with its arguments; run it in `whole_environment`."""
        return [sys.executable, "-m", "airflow", *arguments]

    def start(self) -> None:
        """Start each of the four processes that does not run. PostgreSQL must be ready."""
        if all(self.pids.values()):
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._settings.write_password_file()
        environment = self.whole_environment()
        _require_driver()
        self._migrate(environment)
        for name, arguments in _PROCESSES.items():
            if self.daemons[name].pid is None:
                self.daemons[name].start(self.command([name, *arguments]), environment=environment, cwd=self.folder)

    def wait(self, seconds: float = 240) -> None:
        """Wait until the API answers and reports scheduler, DAG processor and triggerer as healthy.

        A scheduler that reports no more and runs no task is started again. One that lost its database ends when its
        workers have ended, and some of these may wait for a word that it gave to others: it then hangs for ever
        (https://github.com/apache/airflow/issues/67870).
        """

        def ready() -> str | None:
            for daemon in self.daemons.values():
                if daemon.pid is None:
                    raise StackError(f"{daemon.name} ended while starting. {daemon.log_tail()}")
            missing = self.health()
            scheduler = self.daemons["scheduler"]
            if missing == SILENT_SCHEDULER and (pid := scheduler.pid) is not None and _runs_no_task(pid):
                scheduler.stop()
                self.start()
            return missing

        self.daemons["api-server"].wait_ready(ready, seconds)

    def health(self) -> str | None:
        """None if all four processes run and are healthy; else what is wrong."""
        gone = [name for name, pid in self.pids.items() if pid is None]
        if gone:
            return f"not running: {', '.join(gone)}"
        if not is_listening(self.port):
            return f"the API server does not listen on port {self.port} yet"
        since = {name: self.daemons[name].started_at or 0.0 for name in _PROCESSES if name != "api-server"}
        return AirflowApi(self.url).health(since)

    def stop(self) -> bool:
        """End the four processes and their tasks. Returns whether one was running."""
        for daemon in self.daemons.values():
            daemon.ask_to_stop()  # all at once, because each takes seconds to end
        stopped = [daemon.stop() for daemon in self.daemons.values()]
        return any(stopped)

    def _migrate(self, environment: Mapping[str, str]) -> None:
        # The command takes ten seconds even if there is nothing to migrate.
        done = self.folder / "database-version"
        if done.exists() and done.read_text() == self.version():
            return
        answer = subprocess.run(
            self.command(("db", "migrate")),
            capture_output=True, text=True, env=dict(environment), cwd=self.folder, check=False,
        )  # fmt: skip
        log = self._home.logs / "airflow-migrate.log"
        write_private(log, answer.stdout + answer.stderr)
        if answer.returncode != 0:
            raise StackError(
                f"`airflow db migrate` failed with exit code {answer.returncode}. Its output is in {log} and ends with:"
                f" {' | '.join(answer.stderr.splitlines()[-2:])}. Run `epochline up` to try again."
            )
        write_private(done, self.version())


def _runs_no_task(scheduler: int) -> bool:
    """Whether the workers of the scheduler with this pid are idle or dead, so that its end stops no task."""
    with suppress(psutil.NoSuchProcess):
        workers = psutil.Process(scheduler).children()
        return all(worker.status() == psutil.STATUS_ZOMBIE or _is_idle_worker(worker) for worker in workers)
    return False


def _is_idle_worker(process: psutil.Process) -> bool:
    """Whether it is a worker of the LocalExecutor that has no task. Such a worker ignores SIGTERM."""
    return process.cmdline()[:1] == ["airflow worker -- LocalExecutor: <idle>"]


def _require_driver() -> None:
    # Airflow opens a second, asynchronous engine on the same database, which needs this driver.
    if importlib.util.find_spec("asyncpg") is None:
        raise StackError("the package asyncpg, which Airflow needs for PostgreSQL, is missing; run `make setup`")
