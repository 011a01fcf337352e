"""Runs a Spark session in this process for the command line, with Spark's output in a log file."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"


@contextmanager
def session(
    name: str,
    master: str,
    *,
    home: Path,
    log: Path,
    conf: Mapping[str, str],
    driver_options: str = "",
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end of the block.

    Args:
        name: name of the application in Spark.
        master: ``local[2]``, ``spark://host:7077``, …
        home: value for ``SPARK_HOME``, because the jars of another installation would not fit.
        log: file to which the JVM and the workers append all output.
        conf: further settings.
        driver_options: options of the driver's JVM; ``SPARK_SUBMIT_OPTS`` wins.
    """
    # pyspark's warnings about the installed pandas do not concern users who run an epoch.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")
    # They would make this a client of a Spark Connect server. The master is the connection's.
    for name in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        os.environ.pop(name, None)
    settings = SparkConf().setAppName(name).setMaster(master).set("spark.ui.enabled", "false")
    for key, value in conf.items():
        settings.set(key, value)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(home)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", driver_options)
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    with _py4j_logs_to(log):
        with log.open("ab") as out:
            gateway = launch_gateway(settings, popen_kwargs={"stdout": out, "stderr": out})
        on_interrupt = signal.getsignal(signal.SIGINT)
        context = SparkContext(conf=settings, gateway=gateway)
        if threading.current_thread() is threading.main_thread():
            # Spark's own handler would call the JVM in the middle of another call, which fails.
            signal.signal(signal.SIGINT, on_interrupt)
        context.setLogLevel("WARN")
        spark = SparkSession(context)
        try:
            yield spark
        finally:
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM ends when this pipe does
            gateway.proc.wait(timeout=30)
            # The next session of this process starts a new JVM.
            SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _py4j_logs_to(log: Path) -> Iterator[None]:
    """Append what py4j logs to a file: it logs a traceback of each call that is interrupted, and raises it as well."""
    file = logging.FileHandler(log, delay=True)

    def keep(record: logging.LogRecord) -> bool:
        if "py4j" not in Path(record.pathname).parts:
            return True
        file.emit(record)
        return False

    # It logs by its own logger and by the root logger.
    root, own = logging.getLogger(), logging.getLogger("py4j")
    propagated = own.propagate
    root.addFilter(keep)
    own.addHandler(file)
    own.propagate = False
    try:
        yield
    finally:
        root.removeFilter(keep)
        own.removeHandler(file)
        own.propagate = propagated
        file.close()
