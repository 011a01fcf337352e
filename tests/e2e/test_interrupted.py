"""Ctrl-C at a terminal."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from epochline.kafka.source import KafkaOffsets
from tests.commands import COMMAND, environment_of
from tests.databases import query
from tests.integration.kafka_topics import make_topic, produce
from tests.waiting import wait_for

DECLARED = """
from epochline import KafkaSource, Pipeline, PostgresTable, epoch_dag

dag = epoch_dag(Pipeline(
    name="interrupted", source=KafkaSource(topics="{topic}"), parse="slow_parse:parse", record={{"value": "text"}},
    sinks=PostgresTable(table="interrupted", columns={{"value": "text"}}), spark_connection="spark_here",
))
"""
PARSE = """
import time
from pathlib import Path

def parse(batch):
    Path({begun!r}).touch()
    time.sleep(600)
"""


def session_of(process: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(process)
    return None


@pytest.mark.parametrize("moment", ["Spark starts", "Spark works"])
def test_ctrl_c_in_a_run_aborts_the_epoch_and_says_so_in_two_lines(
    moment: str, postgres_dsn: str, kafka_bootstrap: str, topic_name: str, tmp_path: Path
) -> None:
    """The terminal sends the signal to the command and to all its processes. None of them is left."""
    begun, said = tmp_path / "begun", tmp_path / "said"
    (tmp_path / "declared.py").write_text(DECLARED.format(topic=topic_name))
    (tmp_path / "slow_parse.py").write_text(PARSE.format(begun=str(begun)))
    KafkaOffsets({"bootstrap.servers": kafka_bootstrap}).forget("epochline.interrupted")
    produce(kafka_bootstrap, make_topic(kafka_bootstrap, topic_name), [b"a"])
    environment = environment_of(
        tmp_path, postgres=postgres_dsn, kafka=kafka_bootstrap,
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        AIRFLOW_CONN_SPARK_HERE=json.dumps({"conn_type": "spark", "host": "local[1]"}),
    )  # fmt: skip
    subprocess.run([*COMMAND, "migrate"], env=environment, check=True, capture_output=True)

    def come() -> bool:
        return begun.exists() if moment == "Spark works" else "starting Spark" in said.read_text()

    with said.open("w") as file, subprocess.Popen(
        [*COMMAND, "run", "interrupted"], env=environment, text=True, stdout=subprocess.PIPE, stderr=file,
        start_new_session=True,
    ) as run:  # fmt: skip
        try:
            wait_for(moment, lambda: come() or run.poll() is not None, 60)
            os.killpg(run.pid, signal.SIGINT)
            out, _ = run.communicate(timeout=60)
        finally:
            run.kill()

    err = said.read_text()
    wait_for("its processes are gone", lambda: not [one for one in psutil.pids() if session_of(one) == run.pid])
    assert (run.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert err.splitlines()[-2:] == [
        "epoch 1 of interrupted was aborted; no offset moved, the next run reads its range again", "interrupted"
    ]  # fmt: skip
    assert query(postgres_dsn, "SELECT state, error FROM epochline.epochs")[0][0] == "ABORTED"
