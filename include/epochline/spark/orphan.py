"""Ends the driver when the JVM that started it is gone.

Airflow ends a task by killing spark-submit's JVM. The Python driver is its child and would keep running as an orphan:
it would hold memory and connections, and its database sessions would look like a running attempt.
"""

from __future__ import annotations

import os
import threading
import time

ORPHANED = 143
"""Exit code of a driver that ended itself, the same as after SIGTERM."""


def end_with_parent(interval_s: float = 0.5) -> threading.Thread:
    """Watch the parent process and, once it is gone, end this process at once without any clean-up.

    No clean-up is needed: PostgreSQL rolls back open transactions, and nothing counts without an end mark.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval_s)
        os._exit(ORPHANED)

    thread = threading.Thread(target=watch, name="epochline-orphan-watch", daemon=True)
    thread.start()
    return thread
