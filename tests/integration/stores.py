"""Stores of files as real servers: they keep their data on a disk, and tests kill them and start them again."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import fsspec
import psutil
import pytest

from epochline.local.home import LOOPBACK
from epochline.local.jars import JarSet, cache_folder, find_java, installed_pyspark
from tests.ports import free_port
from tests.waiting import wait_for

_PATIENCE = 600
_VERSITY = "v1.8.0"
_HDFS_JARS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "log4j", "commons-cli", "jcl-over-slf4j")
"""The jars of pyspark that Hadoop's servers need as well."""


class Store:
    """One store of one or more processes.

    Attributes:
        root: URL below which tests write.
        environment: what a process needs to reach the store, as a user sets it.
    """

    root: str
    environment: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[psutil.Popen] = []

    def new_url(self) -> str:
        """A folder that no other test has."""
        return f"{self.root}/{uuid.uuid4().hex}/visits"

    def start(self) -> None:
        """Start every process and wait until the store takes a file."""
        for name, command in self.commands().items():
            with (self._folder / f"{name}.log").open("ab") as log:
                started = psutil.Popen(
                    command, cwd=self._folder, env={**os.environ, **self.secrets()}, stdout=log, stderr=log
                )
            self._processes.append(started)
        wait_for(f"{self.root} takes a file; see {self._folder}", self._takes_a_file, _PATIENCE, every=0.2)

    def kill(self) -> None:
        """End the store as a power cut of its programs does."""
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait(30)
        self._processes.clear()

    def commands(self) -> Mapping[str, Sequence[str]]:
        """The processes of the store, by name."""
        raise NotImplementedError

    def secrets(self) -> Mapping[str, str]:
        """Environment of the processes."""
        return {}

    def _takes_a_file(self) -> bool:
        ended = [process.pid for process in self._processes if process.poll() is not None]
        assert not ended, f"{self.root} ended; see {self._folder}"
        # A file of its own for each try: HDFS lets nobody write for a minute to one that a failed try left open.
        store, path = fsspec.url_to_fs(f"{self.root}/ready/{uuid.uuid4().hex}", use_listings_cache=False)
        # Drivers have errors of their own, and one of them is raised until the server answers.
        with suppress(Exception):
            self.limit(store)
            store.pipe_file(path, b"ready")
            store.rm_file(path)
            return True
        return False

    def limit(self, store: fsspec.AbstractFileSystem) -> None:
        """Let a request of the driver fail that has no answer; a server that starts may never give it."""


class Hdfs(Store):
    """A NameNode and a DataNode, which keep names and blocks on the disk.

    Attributes:
        ivy: files that name the servers' jars.
    """

    ivy: Sequence[Path] = (Path(__file__).with_name("hdfs.xml"),)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rpc, http, data, ipc, data_http = (free_port() for _ in range(5))
        self.root = f"webhdfs://{LOOPBACK}:{http}/tests"
        settings = {
            "fs.defaultFS": f"hdfs://{LOOPBACK}:{rpc}", "hadoop.tmp.dir": f"{folder}/data",
            "dfs.namenode.rpc-address": f"{LOOPBACK}:{rpc}", "dfs.namenode.http-address": f"{LOOPBACK}:{http}",
            "dfs.datanode.address": f"{LOOPBACK}:{data}", "dfs.datanode.ipc.address": f"{LOOPBACK}:{ipc}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{data_http}", "dfs.datanode.hostname": LOOPBACK,
            "dfs.replication": "1", "dfs.permissions.enabled": "false", "dfs.namenode.safemode.extension": "0",
        }  # fmt: skip
        for name in ("core-site.xml", "hdfs-site.xml"):
            configure(folder / name, settings)
        (folder / "log4j2.properties").write_text(
            "rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.layout.type = PatternLayout\n"
        )

    def format(self) -> None:
        """Make the empty file system, once."""
        command = [*self._java("hdfs.server.namenode.NameNode"), "-format"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def commands(self) -> Mapping[str, Sequence[str]]:
        return {name: self._java(f"hdfs.server.{name}") for name in ("namenode.NameNode", "datanode.DataNode")}

    def limit(self, store: fsspec.AbstractFileSystem) -> None:
        store.session.request = partial(type(store.session).request, store.session, timeout=10)

    def _java(self, name: str) -> list[str]:
        servers = [jar for file in self.ivy for jar in JarSet(file).ensure()]
        shared = [jar for jar in (installed_pyspark() / "jars").glob("*.jar") if jar.name.startswith(_HDFS_JARS)]
        path = os.pathsep.join(map(str, [self._folder, *servers, *shared]))
        return [str(find_java()), "-Xmx256m", "-cp", path, f"org.apache.hadoop.{name}"]


def configure(file: Path, settings: Mapping[str, str]) -> None:
    """Write a file of Hadoop's settings."""
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    file.write_text(f"<configuration>{rows}</configuration>")


class S3(Store):
    """Versity's S3 gateway over a folder of this machine.

    Args:
        folder: of the server.
        conditional: whether it keeps metadata. Without metadata it ignores ``If-None-Match`` and overwrites.
    """

    root = "s3://lake"

    def __init__(self, folder: Path, *, conditional: bool = True) -> None:
        super().__init__(folder)
        self._address = f"{LOOPBACK}:{free_port()}"
        self._options = ["--sidecar", f"{folder}/metadata"] if conditional else ["--nometa"]
        for name in ("data/lake", "metadata"):
            (folder / name).mkdir(parents=True)
        self.environment = {
            "AWS_ENDPOINT_URL_S3": f"http://{self._address}", "AWS_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1",
            "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": uuid.uuid4().hex, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def commands(self) -> Mapping[str, Sequence[str]]:
        return {"versitygw": [_versity(), "--port", self._address, "posix", *self._options, f"{self._folder}/data"]}

    def secrets(self) -> Mapping[str, str]:
        return {
            "ROOT_ACCESS_KEY": self.environment["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
        }


@contextmanager
def started(store: Store) -> Iterator[Store]:
    """Run a store during the block, with its environment in this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        # fsspec keeps a client by its URL, and another server of this process may have had the same one.
        fsspec.get_filesystem_class(store.root.partition(":")[0]).clear_instance_cache()
        try:
            store.start()
            yield store
        finally:
            store.kill()


def _versity() -> str:
    """The gateway's program, compiled once per machine."""
    folder = cache_folder() / f"versitygw-{_VERSITY}"
    program = folder / "versitygw"
    if not program.exists():
        assert shutil.which("go"), "the S3 server is compiled by Go; Debian: apt-get install golang"
        made = subprocess.run(
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{_VERSITY}"],
            env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
    return str(program)
