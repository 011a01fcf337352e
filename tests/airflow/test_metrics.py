"""What Prometheus and StatsD get from a running Airflow: by whose login, and from a task of a real epoch."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.airflow.conftest import Scheduler, eventually
from tests.airflow.page_requests import ask, token_of


def test_a_user_of_airflow_or_the_token_is_needed_for_the_metrics(scheduler: Scheduler) -> None:
    """Issue 40, SEC-3: in Airflow's own API server, beside its users."""
    token = "a-token-of-this-test"
    file = scheduler.stack.home.root / "metrics-token"
    asked = {
        "nobody": None,
        "a wrong token": f"{token}x",
        "the token": token,
        "a viewer": token_of(scheduler, "viewer"),
    }

    file.write_text(f"{token}\n")
    answers = {who: ask(scheduler, "/metrics", given) for who, given in asked.items()}
    file.unlink()

    assert {who: answer.status for who, answer in answers.items()} == {
        "nobody": 401, "a wrong token": 403, "the token": 200, "a viewer": 200,
    }  # fmt: skip
    assert ask(scheduler, "/metrics", token).status == 403, "without the file nothing is a token"
    for who in ("the token", "a viewer"):
        assert "epochline_up 1.0" in answers[who].text
    assert token not in "".join(
        log.read_text(errors="replace") for log in scheduler.stack.home.logs.glob("airflow*.log")
    )


def test_a_task_sends_the_figures_of_its_epoch_the_way_that_airflow_sends_its_own(scheduler: Scheduler) -> None:
    """Issue 40: StatsD, received by a socket. Each line of the log of a task is JSON, those of Spark's job too."""
    scheduler.prepare("figures", {0: ["a", "b", "bad"], 1: ["c"]})
    port = scheduler.stack.airflow.environment()["AIRFLOW__METRICS__STATSD_PORT"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", int(port)))
        received: dict[str, str] = {}

        def listen() -> None:
            while "commit_seconds" not in received:
                packet = listening.recv(65536).decode()
                received.update(re.findall(r"epochline\.epoch\.(\w+)\.figures:([^\n]+)", packet))

        # Airflow's own processes send all the time: what is not read at once is lost.
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        assert scheduler.run("figures")["run"] == "success"
        eventually("the figures are there", lambda: not thread.is_alive(), 30)

    assert {name: value for name, value in received.items() if "seconds" not in name} == {
        "committed": "1|g", "attempts": "1|g", "records": "4|g", "records_skipped": "0|g", "records_quarantined": "1|g",
        "rows_written": "6|g",
    }  # fmt: skip
    assert {"pre_commit_seconds", "commit_seconds"} < {*received}
    [log] = scheduler.stack.home.logs.glob("airflow/dag_id=figures/*/task_id=pre_commit/*.log")
    assert all("event" in json.loads(line) for line in log.read_text().splitlines())


def test_airflows_own_setting_makes_our_logs_json(tmp_path: Path) -> None:
    """Issue 40."""
    said = (
        "import logging; from airflow.logging_config import configure_logging; configure_logging();"
        "logging.getLogger('epochline.coordinator').warning('epoch.%s', 'aborted')"
    )
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__LOGGING__JSON_LOGS": "True"}

    done = subprocess.run([sys.executable, "-c", said], env=environment, capture_output=True, text=True, check=True)

    [line] = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if "epoch.aborted" in line]
    assert (line["event"], line["logger"], line["level"]) == ("epoch.aborted", "epochline.coordinator", "warning")
