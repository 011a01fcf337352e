"""What Airflow waits for before it takes a task or a scheduler for dead, for `epochline doctor`.

It runs in a process of its own: importing Airflow takes two seconds and redirects the logs of the process. It writes
one line of JSON: ``settings`` in seconds, ``executor``, and ``session``: the login of Airflow's database, and how long
an idle transaction of it lives, in milliseconds; None if that is no PostgreSQL, or does not answer.
"""

import json
import os
import sys
from typing import Any

SETTINGS = ("task_instance_heartbeat_timeout", "orphaned_tasks_check_interval", "scheduler_health_check_threshold")
_ASK = "SELECT current_user, setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"


def found() -> dict[str, Any]:
    """The answer."""
    from airflow.configuration import conf

    return {
        "settings": {name: conf.getfloat("scheduler", name) for name in SETTINGS},
        "executor": conf.get("core", "executor"),
        "session": _session(conf.get("database", "sql_alchemy_conn")),
    }


def _session(url: str) -> tuple[str, int] | None:
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import SQLAlchemyError

    if not url.startswith("postgres"):
        return None
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5})
        with engine.connect() as connection:
            login, milliseconds = connection.exec_driver_sql(_ASK).one()
            return login, int(milliseconds)
    except (SQLAlchemyError, ImportError, TypeError):  # Its text may hold the password.
        return None


def main() -> None:
    """Write the answer, and nothing that Airflow prints."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(json.dumps(found()), file=answers)


if __name__ == "__main__":
    main()
