"""Main program of a Spark job: stages one attempt of one epoch. Connection details come from a file.

spark-submit starts this file as a driver. Where the file of connection details names a Spark Connect server, it is a
client of that server.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from epochline.config.extras import naming_extras
from epochline.config.places import functions_folder
from epochline.errors import EpochlineError
from epochline.spark.credentials import read_credentials
from epochline.spark.failure import without_frames

_ENDED = 143
"""Exit code of a driver that ended itself, the same as after SIGTERM."""


def main(arguments: list[str] | None = None) -> int:
    """Stage the attempt; returns 0 once its end mark is written, 1 for an Epochline error.

    The last line on stderr of an Epochline error is ``EPOCHLINE-ERROR <class>: <message>``. In client mode spark-submit
    prints this process's stderr on its own stdout.
    """
    parser = argparse.ArgumentParser(description="Stage one attempt of an epoch: Kafka to PostgreSQL's staging.")
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--attempt", required=True, type=int)
    options = parser.parse_args(arguments)
    _import_from_the_project()
    threading.Thread(target=_end_with_parent, name="epochline-orphan-watch", daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        with naming_extras():
            _run(options.pipeline, options.epoch, options.attempt)
    except EpochlineError as error:
        print(f"EPOCHLINE-ERROR {type(error).__name__}: {without_frames(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def _import_from_the_project() -> None:
    """Find functions of ``spark_jobs/`` first, and none of this package's modules by a bare name such as ``state``.

    Python puts the folder of a program's file on the path, and this file is among the package's modules.
    """
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(functions_folder()), *(folder for folder in sys.path if folder != own)]


def _end_with_parent() -> None:
    """End this process once its parent is gone: Airflow ends a task by killing spark-submit's JVM, whose child it is.

    An orphan would hold memory and connections, and its database sessions would look like a running attempt. No
    clean-up is needed: PostgreSQL rolls back open transactions, and nothing counts without an end mark.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(_ENDED)


def _run(pipeline: str, epoch: int, attempt: int) -> None:
    credentials = read_credentials()
    # Imported here, so that Spark starts only if the credentials can be read.
    from pyspark.sql import SparkSession

    from epochline.spark.job import run

    if credentials.server is not None:
        from epochline.config.discovery import code_version
        from epochline.spark.session import shared_session

        # A task that is killed ends its job, whose query is then interrupted.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
        with shared_session(credentials.server, pipeline, code_version()) as spark:
            run(spark, pipeline, epoch, attempt, credentials)
        return
    spark = (
        SparkSession.builder.appName(f"epochline {pipeline} epoch {epoch} attempt {attempt}")
        .config("spark.redaction.regex", "(?i)secret|password|passwd|token|access[.]?key|jaas|credential")
        .getOrCreate()
    )
    try:
        run(spark, pipeline, epoch, attempt, credentials)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
