"""Sessions of Spark: in this process for the command line, or on a Spark Connect server, warm between epochs.

The process of a job is a client of such a server: its DataFrames are plans, which the server executes. A server keeps
its Python workers per session. So all epochs of a pipeline share a session as long as its code stays the same, and two
pipelines, or two versions of one, never share a worker's modules.
"""

import logging
import os
import signal
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from epochline.errors import ConfigurationError

_LOOPBACK = "127.0.0.1"


@contextmanager
def session(
    name: str, master: str, *, home: Path, log: Path, conf: Mapping[str, str], driver_options: str = ""
) -> Iterator[SparkSession]:
    """Start Spark in this process, and stop it at the end of the block.

    ``home`` becomes ``SPARK_HOME``, because the jars of another installation would not fit. The JVM and the workers
    append all output to ``log``. ``SPARK_SUBMIT_OPTS`` wins over ``driver_options``, the options of the driver's JVM.
    """
    # pyspark's warnings about the installed pandas do not concern users who run an epoch.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")
    # They would make this a client of a Spark Connect server. The master is the connection's.
    for variable in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        os.environ.pop(variable, None)
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
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    propagated = py4j.propagate
    root.addFilter(keep)
    py4j.addHandler(file)
    py4j.propagate = False
    try:
        yield
    finally:
        root.removeFilter(keep)
        py4j.removeHandler(file)
        py4j.propagate = propagated
        file.close()


_NAMESPACE = uuid.UUID("5b6a1c0e-3a53-4f0c-9f0e-6d1f7c1c2a11")
SHUFFLES = "spark.sql.shuffle.partitions"
"""The setting for the number of shuffle partitions."""

_SPARKS_SHUFFLES = "200"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_CORES = "spark.default.parallelism"
_TRIES, _LONGEST_WAIT_MS = 6, 5000
"""How often a request is sent again, and how long is waited before: 15 s in all."""

_GONE = ("SESSION_CLOSED", "SESSION_CHANGED", "INVALID_HANDLE")


@contextmanager
def shared_session(url: str, pipeline: str, code: str) -> Iterator[SparkSession]:
    """The session of a pipeline on a server. It stays on the server after the block, for the next epoch.

    What an earlier client of the pipeline left running there is interrupted first: its attempt is fenced. ``code`` is a
    version of the code that the pipeline's functions may import. Raises `PySparkException` if the server does not
    answer, or refuses the token.
    """
    spark = _opened(url, uuid.uuid5(_NAMESPACE, f"{pipeline}\n{code}"))
    tag = f"epochline-{uuid.uuid5(_NAMESPACE, pipeline)}"
    client: Any = spark.client
    try:
        spark.interruptTag(tag)
        spark.addTag(tag)
        yield spark
    except (KeyboardInterrupt, SystemExit):
        # The task was killed while its query runs.
        with suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        # Not `stop`, which would end the session on the server.
        client.close()


def in_session(url: str, session_id: uuid.UUID) -> str:
    """The URL of a session on a server, whether or not the server's URL has a slash or parameters.

    A server keeps sessions by user. Without a user in the URL, a client would name the account of its own machine, and
    would not find the session of a client on another one.
    """
    address, _, parameters = url.partition("/;")
    existing = parameters.rstrip(";").split(";") if parameters.rstrip(";") else []
    if not any(parameter.startswith("user_id=") for parameter in existing):
        existing.append("user_id=epochline")
    return f"{address.rstrip('/')}/;{';'.join([*existing, f'session_id={session_id}'])}"


def _opened(url: str, session_id: uuid.UUID) -> SparkSession:
    spark = _client(in_session(url, session_id))
    try:
        _ = spark.version
    except PySparkException as error:
        # A server refuses the id of a session that it has closed, for instance because it was idle for an hour.
        if not any(word in str(error) for word in _GONE):
            raise
        spark.client.close()
        spark = _client(in_session(url, uuid.uuid4()))
    return spark


def _client(url: str) -> SparkSession:
    # Loads the client's libraries, which a driver does not need.
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark = SparkSession.builder.remote(url).create()
    # By default a client waits ten minutes for a server that is gone, and so would the epoch.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_WAIT_MS)])
    return spark


def cores(spark: SparkSession) -> int:
    """How many tasks run at once."""
    return int(spark.conf.get(_CORES, "2") or 2) if is_remote() else spark.sparkContext.defaultParallelism


def has_one_executor(spark: SparkSession) -> bool:
    """Whether all tasks run in one process of Spark's."""
    master = spark.conf.get("spark.master", "") or ""
    return master.startswith("local") and not master.startswith("local-cluster")


def prepare(spark: SparkSession, declared: Mapping[str, str], offsets: int) -> None:
    """Make the settings of a job that reads so many offsets; ``declared`` is the pipeline's ``spark_conf``.

    Raises `ConfigurationError` for a setting that belongs to a server, which runs already.
    """
    settings = {name: declared.get(name, value) for name, value in DEFAULTS.items()}
    if is_remote():
        shuffles_are_chosen = spark.conf.get(SHUFFLES) != _SPARKS_SHUFFLES
        for name, value in declared.items():
            _set_on_server(spark, name, value)
    else:  # spark-submit has applied what is declared
        shuffles_are_chosen = spark.sparkContext.getConf().get(SHUFFLES) is not None
    if not shuffles_are_chosen:
        # Each part is a transaction, and Spark's default of 200 is too many for most epochs.
        settings[SHUFFLES] = declared.get(SHUFFLES, str(2 * cores(spark)))
    if _ADAPTIVE not in declared:
        # Back to what the session was started with: an earlier epoch may have used the session.
        spark.conf.unset(_ADAPTIVE)
        if offsets <= _SMALL_EPOCH:
            settings[_ADAPTIVE] = "false"
    for name, value in {**settings, **_ALWAYS}.items():
        spark.conf.set(name, value)


def _set_on_server(spark: SparkSession, name: str, value: str) -> None:
    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        raise ConfigurationError(
            f"spark_conf: {name} cannot be set on a Spark server that runs already"
            f" ({error.getCondition() or type(error).__name__}). Set it where the server is started, or give the"
            " pipeline a spark_connection of type spark, which starts a driver for each epoch."
        ) from error


BATCH_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark's setting for the records of an Arrow batch."""

_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

DEFAULTS = {
    # A worker holds one batch in memory, so a batch is limited in records and in bytes.
    BATCH_RECORDS: "10000",
    _BATCH_BYTES: str(64 * 1024 * 1024),
}
"""Settings of a job that a declaration's ``spark_conf`` may change."""

_ALWAYS = {
    # Timestamps travel as UTC, whatever the machine's zone.
    "spark.sql.session.timeZone": "UTC",
    # As in PostgreSQL, "a" and "A" are two columns.
    "spark.sql.caseSensitive": "true",
}

_SMALL_EPOCH = 50_000
"""Up to so many offsets, planning each stage again after the one before it takes longer than it can save."""

MEMORY_SETTINGS = (
    "spark.driver.memory",
    "spark.executor.memory",
    "spark.executor.pyspark.memory",
    "spark.memory.offHeap.size",
    BATCH_RECORDS,
    _BATCH_BYTES,
    SHUFFLES,
)
"""The settings that docs/memory.md explains, and that a job logs."""
