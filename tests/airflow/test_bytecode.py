"""No process compiles a module: where Python may not write bytecode, each would do it again at every start."""

import os
import subprocess
import sys
from pathlib import Path

from tests.airflow.conftest import Scheduler
from tests.conftest import AIRFLOW_DAGS, COMPILED, FUNCTIONS

ROOT = Path(__file__).parents[2]
PIPELINE = "compiled"
ADVICE = "`make setup` compiles what is installed, and the project's own files after each change"


def compiled(trace: Path) -> list[str]:
    return sorted({line.partition(" ")[2] for line in trace.read_text().splitlines()} if trace.exists() else ())


def run_python(trace: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that may not write bytecode, and whose compiling is written down."""
    path = os.pathsep.join(map(str, (COMPILED, ROOT / "include", ROOT / "spark_jobs", FUNCTIONS)))
    own = {"EPOCHLINE_COMPILED": str(trace), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **own, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_module_without_bytecode_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").touch()
    script = tmp_path / "script.py"
    script.write_text("import json, fresh")

    assert run_python(tmp_path / "trace", str(script)).returncode == 0

    assert compiled(tmp_path / "trace") == [str(tmp_path / "fresh.py")]


def test_neither_a_process_of_an_epoch_nor_a_command_compiles_a_module(scheduler: Scheduler, tmp_path: Path) -> None:
    """Scheduler, API server, DAG processor, the four tasks, Spark's driver and its workers, and `epochline lag`."""
    environment = scheduler.stack.airflow.environment()
    assert str(COMPILED) in environment["PYTHONPATH"]
    scheduler.prepare(PIPELINE, {p: [f"row-{p}"] for p in range(4)})

    assert scheduler.run(PIPELINE)["run"] == "success"
    done = run_python(
        tmp_path / "trace", str(Path(sys.executable).with_name("epochline")), "lag", PIPELINE,
        EPOCHLINE_HOME=str(scheduler.stack.home.root), EPOCHLINE_DAGS=str(AIRFLOW_DAGS),
    )  # fmt: skip

    assert compiled(Path(environment["EPOCHLINE_COMPILED"])) == [], ADVICE
    assert done.returncode == 0, done.stderr
    assert compiled(tmp_path / "trace") == [], ADVICE
