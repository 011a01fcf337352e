"""A real Prometheus with the shipped rules, and the plugin's pages in a server of their own for it to scrape."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.ports import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "include" / "observability"
RULES = SHIPPED / "alerts.yaml"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus on this machine (Debian: prometheus)"
)

SERVE = """
import sys, uvicorn
from fastapi import FastAPI
from epochline.airflow.pages.plugin import APPS
server = FastAPI()
for one in APPS:
    server.mount(one["url_prefix"], one["app"])
uvicorn.run(server, host="127.0.0.1", port=int(sys.argv[1]), access_log=True)
"""


@dataclass(frozen=True)
class Plugin:
    """The pages in a process of their own."""

    port: int
    process: subprocess.Popen[bytes]
    token_file: Path
    log: Path

    def ask(self, token: str | None, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
        """Status, kind and text of an answer."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/epochline{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()


@contextmanager
def plugin(dsn: str, folder: Path, code: str = SERVE) -> Iterator[Plugin]:
    """Serve the pages over a ledger, to whoever has the token."""
    token_file, port, log = folder / "metrics-token", free_port(), folder / "plugin.log"
    token_file.write_text(secrets.token_urlsafe(24) + "\n")
    token_file.chmod(0o400)
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
        "AIRFLOW_CONN_EPOCHLINE_READER": dsn,
        "EPOCHLINE_METRICS_TOKEN_FILE": str(token_file),
        "PYTHONPATH": str(ROOT / "include"),
    }
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", code, str(port)], env=environment, stdout=file, stderr=file) as process,
    ):
        served = Plugin(port, process, token_file, log)
        try:
            wait_for("the plugin is served", lambda: _answers(served))
            yield served
        finally:
            process.kill()


def _answers(served: Plugin) -> bool:
    assert served.process.poll() is None, served.log.read_text()
    try:
        return served.ask(None)[0] == 401
    except OSError:
        return False


@dataclass(frozen=True)
class Prometheus:
    """Scrapes a plugin each second, with the shipped rules; each fires as soon as its expression holds."""

    port: int

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=text)["result"])

    def value(self, text: str) -> float | None:
        found = self.query(text)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> list[tuple[str, str]]:
        """Each alert that fires, with its pipeline."""
        alerts = self.ask("alerts")["alerts"]
        return sorted((one["labels"]["alertname"], one["labels"].get("pipeline", "")) for one in alerts)


@contextmanager
def prometheus(served: Plugin, folder: Path) -> Iterator[Prometheus]:
    """Start it with the shipped configuration; times alone are shorter."""
    port, config = free_port(), folder / "prometheus.yaml"
    text = (SHIPPED / config.name).read_text()
    text = text.replace("localhost:8080", f"127.0.0.1:{served.port}")
    config.write_text(text.replace("scrape_interval: 30s", "scrape_interval: 1s\n  evaluation_interval: 1s"))
    (folder / RULES.name).write_text(re.sub(r"for: \d+m", "for: 0s", RULES.read_text()))
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        one = Prometheus(port)
        try:
            wait_for("Prometheus has scraped", lambda: _has_scraped(one))
            yield one
        finally:
            process.kill()


def _has_scraped(one: Prometheus) -> bool:
    try:
        return bool(one.query("up"))
    except OSError:
        return False
