"""What `epochline doctor` finds at Airflow: the one that a variable names, and the settings of this environment's."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from epochline.cli import printing
from epochline.cli.airflow_access import URL, airflow_api
from epochline.cli.airflow_lookups import no_airflow
from epochline.cli.database_settings import quoted
from epochline.cli.installation import Check
from epochline.errors import EpochlineError, one_line
from epochline.protocol.quantities import duration

_MODULE = "epochline.airflow.time_outs"
_PATIENCE_SECONDS = 60

_MOST = {
    "task_instance_heartbeat_timeout": (120, 60, "a task whose worker was killed counts as running for so long"),
    "orphaned_tasks_check_interval": (60, 30, "a task that was killed with its scheduler waits for so long"),
    "scheduler_health_check_threshold": (60, 30, "another scheduler takes over after so long"),
}
"""By setting: the most seconds, the seconds to set, and what more means for an epoch."""


def airflow() -> Iterator[Check]:
    """Whether the Airflow that a variable names answers, and takes the token or login."""
    if not os.environ.get(URL):
        return
    try:
        api = airflow_api()
        said = f"Airflow {api.version()} at {api.access.url} takes the {api.access.credential}"
        yield Check(check="airflow_api", subject=URL, said=said)
    except EpochlineError as error:
        mend = f"set {URL}, and the token or login for it, as docs/settings.md says"
        yield Check(check="airflow_api", subject=URL, outcome="wrong", said=one_line(error), mend=mend)


def airflow_settings() -> Iterator[Check]:
    """How soon Airflow notices what was killed, and lets go of it; nothing where no Airflow is configured here."""
    if no_airflow() is not None:
        return
    printing.progress("asking Airflow for its settings, for at most a minute …")
    try:
        answer = _answer()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = f"Airflow's configuration does not load: {type(error).__name__}"
        yield Check(check="airflow_time_outs", outcome="warning", said=said, mend=f"{sys.executable} -m {_MODULE}")
        return
    late = {name: value for name, value in answer["settings"].items() if value > _MOST[name][0]}
    if late:
        said = "; ".join(f"{name} is {duration(value)}: {_MOST[name][2]}" for name, value in late.items())
        mend = " ".join(f"export AIRFLOW__SCHEDULER__{name.upper()}={_MOST[name][1]}" for name in late)
        yield Check(check="airflow_time_outs", outcome="warning", said=said, mend=mend)
    else:
        yield Check(check="airflow_time_outs", said="a killed task or scheduler is noticed within two minutes")
    yield _database(answer["session"], answer["executor"])


def _answer() -> dict[str, Any]:
    # -P: no module of the current folder is imported.
    command = [sys.executable, "-P", "-m", _MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_PATIENCE_SECONDS)
    return dict(json.loads(done.stdout))


def _database(session: tuple[str, int] | None, executor: str) -> Check:
    """Whether the transaction of a killed scheduler ends, which its workers keep open: they have its socket."""
    about: dict[str, Any] = {"check": "airflow_database"}
    if session is None:
        return Check(**about, outcome="not_asked", said="Airflow's database is no PostgreSQL, or does not answer here")
    login, milliseconds = session
    if milliseconds or "LocalExecutor" not in executor:
        return Check(**about, said="the transaction of a killed scheduler ends")
    said = (
        f"idle_in_transaction_session_timeout of the login {login} is 0: the LocalExecutor's workers keep a killed"
        " scheduler's transaction and its locks, and no other scheduler gets its runs"
    )
    mend = f"ALTER ROLE {quoted(login)} SET idle_in_transaction_session_timeout = '30s';"
    return Check(**about, outcome="warning", said=said, mend=mend)
