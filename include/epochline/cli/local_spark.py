"""Spark in the process of a command, with its output in a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from epochline.cli import printing
from epochline.declare.pipeline import Pipeline
from epochline.errors import StackError


def start_spark(block: ExitStack, pipeline: Pipeline, master: str) -> Any:
    """A session of Spark that ends with the block.

    Raises:
        StackError: Spark does not start; the message names its log.
    """
    from epochline.cli.environment import not_started
    from epochline.local.class_archive import class_options
    from epochline.local.spark_home import spark_home
    from epochline.spark.session import session

    log = spark_log()
    printing.progress(f"starting Spark on {master}; its log is {log}")
    started = session(
        f"epochline {pipeline.name}", master, home=spark_home(), driver_options=class_options(), log=log,
        conf=pipeline.spark_conf,
    )  # fmt: skip
    try:
        return block.enter_context(started)
    except Exception as error:
        raise StackError(not_started(error, log)) from error


@cache
def spark_log() -> Path:
    """The file for Spark's own output of this process. No other account can read it, or create it beforehand."""
    from epochline.local.home import Home

    home = Home()
    if home.logs.is_dir():
        return home.logs / "spark-cli.log"
    handle, name = tempfile.mkstemp(prefix="epochline-spark-", suffix=".log")
    os.close(handle)
    return Path(name)
