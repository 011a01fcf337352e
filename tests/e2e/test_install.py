"""docs/install.md, walked literally: an Airflow of one's own, servers that are none of the embedded stack's, a wheel."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.databases import query
from tests.e2e.own_servers import NEWEST, OLDEST, kafka, make_environment, postgres
from tests.waiting import wait_for
from tests.wheels import ROOT

BLOCK = re.compile(r"^```(bash|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMITTED = "SELECT count(*) FROM epochline.epochs WHERE pipeline = 'orders' AND state = 'COMMITTED'"
DONE = "--- the block is done"
POSTGRES_PORT, KAFKA_PORT = "5432", "9092"
"""As the page has them; the servers of the test take others."""


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
