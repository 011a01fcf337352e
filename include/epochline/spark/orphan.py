"""End the driver when the JVM that started it is gone.

Airflow ends a task by killing spark-submit's JVM. The Python driver is a child of it and would go on as an orphan: it
would hold memory and connections, and its database sessions would look like an attempt at work (trap 1).
"""

from __future__ import annotations

import os
import threading
import time

ORPHANED = 143
"""Exit code of a driver that ended itself: as after SIGTERM."""


def end_with_parent(interval_s: float = 0.5) -> threading.Thread:
    """Watch the parent process; once it is gone, end this process at once, without any clean-up.

    Nothing needs one: PostgreSQL rolls back what was not committed, and nothing counts without an end mark.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval_s)
        os._exit(ORPHANED)

    thread = threading.Thread(target=watch, name="epochline-orphan-watch", daemon=True)
    thread.start()
    return thread
