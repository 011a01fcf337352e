"""What `epochline doctor` finds on this machine: room for temporary files, its clock, and its settings."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from epochline.cli.installation import Check, Pipelines
from epochline.config.resolve import ResolvedSettings, file_settings, resolve_settings
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError
from epochline.protocol.quantities import duration, size

LEAST_BYTES = 1024**3
"""Less room than this for temporary files is a warning."""

CLOCKS_SECONDS = 5
"""Clocks that differ by less are taken for equal."""

_LOCAL_DIR = "spark.local.dir"


def disks(pipelines: Pipelines) -> Iterator[Check]:
    """The folders for temporary files of tasks and of Spark, as this environment and the declarations name them."""
    mend = "export TMPDIR=/a/folder/with/room"
    try:
        folders = {tempfile.gettempdir(): mend}
    except FileNotFoundError:
        said = "no folder for temporary files can be written: no job starts"
        yield Check(check="disk", subject="TMPDIR", outcome="wrong", said=said, mend=mend)
        folders = {}
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    folders |= {folder.strip(): "export SPARK_LOCAL_DIRS=/a/folder/with/room" for folder in spark if folder.strip()}
    for one in pipelines.values():
        for folder in filter(None, one.spark_conf.get(_LOCAL_DIR, "").split(",")):
            folders[folder.strip()] = f"in spark_conf of {one.name}, set {_LOCAL_DIR} to a folder with room"
    for folder, mend in folders.items():
        if not Path(folder).is_dir():
            said = "there is no such folder: what Spark spills has no place"
            yield Check(check="disk", subject=folder, outcome="warning", said=said, mend=mend)
            continue
        free = shutil.disk_usage(folder).free
        said = f"{size(free)} free"
        if free < LEAST_BYTES:
            said += ": an epoch that sorts or joins more fails"
            yield Check(check="disk", subject=folder, outcome="warning", said=said, mend=mend)
        else:
            yield Check(check="disk", subject=folder, said=said)


def clock_check(subject: str, ask: Callable[[], float]) -> Check:
    """Compare this machine's clock with a server's, which ``ask`` gives in seconds since 1970."""
    before = time.time()
    there = ask()
    after = time.time()
    ahead = there - (before + after) / 2
    if abs(ahead) <= CLOCKS_SECONDS + (after - before):
        return Check(check="clock", subject=subject, said="as this machine's")
    said = f"{duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's: ages, latencies and the"
    said += " intervals of backfills are wrong by as much"
    mend = "timedatectl set-ntp true, on the machine whose clock is wrong"
    return Check(check="clock", subject=subject, outcome="warning", said=said, mend=mend)


def settings_of(pipeline: Pipeline) -> ResolvedSettings:
    """The settings of a pipeline's epochs; without a settings file that cannot be read, which another check says."""
    try:
        return resolve_settings(pipeline, file=file_settings())
    except ConfigurationError:
        return resolve_settings(pipeline)
