"""The folder for ``SPARK_HOME``: the Spark that is installed with pyspark."""

import hashlib
from contextlib import suppress
from pathlib import Path

from epochline.local.jars import cache_folder, installed_pyspark, unwritable


def spark_home() -> Path:
    """A folder with Spark's launcher and jars, but without its Python archives.

    Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the Python path of its drivers and workers. Python caches
    no bytecode for an archive, so each process would compile some 200 modules of pyspark again. So this folder, in the
    cache, links to all but the archives. If the package has none (the image deletes them), it is the package's folder.

    Raises `StackError` if pyspark is not installed, or the cache cannot be written.
    """
    installed = installed_pyspark()
    if not any(installed.glob("python/lib/*.zip")):
        return installed
    folder = cache_folder() / f"spark-home-{hashlib.sha256(bytes(installed)).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("bin", "jars", "sbin"):
            with suppress(FileExistsError):  # made by an earlier call, or by a process that starts at the same time
                (folder / name).symlink_to(installed / name)
    except OSError as error:
        raise unwritable(folder.parent, error) from error
    return folder
