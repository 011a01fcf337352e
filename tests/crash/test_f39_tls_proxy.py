"""A Spark server behind nginx with TLS, as docs/spark-cluster.md has it: how a token gets to another host."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epochline.local import credentials
from epochline.local.home import LOOPBACK, is_listening
from epochline.local.stack import Stack
from tests.checker import recover
from tests.commands import connect_to
from tests.crash.line import Line
from tests.crash.pre_commit import at_work, begun, operator_of, planned
from tests.crash.spark_job import SERVER, job, log_of
from tests.integration.secure_kafka import Certificates, make_certificates
from tests.ports import free_port
from tests.waiting import wait_for
from tests.wheels import ROOT

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (apt-get install nginx)"),
]  # fmt: skip

AROUND = """
daemon off;
user root;
pid {folder}/nginx.pid;
events {{ }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    {server}
}}
"""
"""What Debian's own file has around the page's ``server``, but for its folders."""


class Nginx:
    """The page's ``server``, on a free port in front of a Spark server."""

    def __init__(self, folder: Path, spark_port: int) -> None:
        self.port, self._folder = free_port(), folder
        self.certificates: Certificates = make_certificates(folder)
        text = (ROOT / "docs" / "spark-cluster.md").read_text()
        [server] = re.findall(r"^```nginx\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        here = {
            "listen 443": f"listen {LOOPBACK}:{self.port}", "spark.example.com;": f"{LOOPBACK};",
            "/etc/nginx/spark.pem": self.certificates.path("broker"),
            "/etc/nginx/spark.key": self.certificates.path("broker-key"),
            "127.0.0.1:15002": f"{LOOPBACK}:{spark_port}",
        }  # fmt: skip
        for its, ours in here.items():
            assert its in server, its
            server = server.replace(its, ours)
        (folder / "nginx.conf").write_text(AROUND.format(folder=folder, server=server))

    def start(self) -> None:
        command = ["nginx", "-c", str(self._folder / "nginx.conf"), "-e", str(self._folder / "error.log")]
        self._process = psutil.Popen(command)
        wait_for("nginx listens", lambda: is_listening(self.port))

    def kill(self) -> None:
        for one in [self._process, *self._process.children()]:
            one.kill()
        self._process.wait(30)


@pytest.fixture
def nginx(stack: Stack, spark_server: str, tmp_path: Path) -> Iterator[Nginx]:
    folder = tmp_path / "nginx"
    folder.mkdir()
    one = Nginx(folder, stack.spark.port)
    one.start()
    yield one
    one.kill()


@pytest.mark.fault("F39")
def test_an_epoch_on_a_server_behind_tls_is_exact_though_the_proxy_is_killed(
    scripted: Line, stack: Stack, nginx: Nginx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F39, I1, SEC-8: by Airflow's connection with a token and ``use_ssl``. The attempt goes on with the new proxy."""
    connect_to(monkeypatch, postgres=scripted.dsn, kafka=scripted.kafka)
    token = credentials.require(stack.home).spark_token
    connection = {"conn_type": "spark_connect", "host": LOOPBACK, "port": nginx.port, "password": token}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({**connection, "extra": {"use_ssl": True}}))
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", nginx.certificates.path("ca"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "functions"))
    planned(scripted)

    task = begun(operator_of(scripted))
    at_work(scripted, task)
    nginx.kill()
    nginx.start()
    since = time.monotonic()
    task.result(240)

    scripted.commit(1)
    recover(scripted, since=since)
    assert scripted.query("SELECT attempt FROM epochline.epochs") == [(1,)]


@pytest.mark.parametrize(
    ("authority", "token", "said"),
    [
        ("ca", "token=not-", "UNAUTHENTICATED|Invalid authentication token"),
        ("other-ca", "token=", "CERTIFICATE_VERIFY"),
    ],
    ids=["token", "certificate"],
)
def test_a_wrong_token_or_a_strangers_certificate_is_refused(
    line: Line, spark_server: str, nginx: Nginx, tmp_path: Path, authority: str, token: str, said: str
) -> None:
    """SEC-8: nothing of the attempt is staged, and the log says why."""
    _, ticket = line.to_begun("run-1")
    url = f"sc://{LOOPBACK}:{nginx.port}/;use_ssl=true;{spark_server.partition(';')[2].replace('token=', token)}"
    roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": nginx.certificates.path(authority)}

    with job(line, ticket, tmp_path, SERVER, server=url, **roots) as client:
        assert client.wait(240) != 0

    assert re.search(said, log_of(tmp_path)), log_of(tmp_path)
    assert line.query("SELECT count(*) FROM epochline.manifest") == [(0,)]
