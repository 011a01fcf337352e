"""Python code that a fresh interpreter runs, and what the code answers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def answer_of(
    code: str, *arguments: object, environment: Mapping[str, str], given: Any = None, folder: Path | None = None
) -> dict[str, Any]:
    """Run code in an interpreter of its own; gives the JSON object that the code prints behind ``ANSWER``.

    The code reads what is given as JSON from standard input, and runs in the folder, else in AIRFLOW_HOME.
    """
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], input=json.dumps(given), env=environment,
        capture_output=True, text=True, check=False,
        cwd=folder or environment.get("AIRFLOW_HOME"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
    return answer


def answer_without_airflow(code: str, *arguments: object, home: Path, **environment: str) -> dict[str, Any]:
    """Run code in an empty AIRFLOW_HOME, where nothing of the stack's Airflow or of epochline is set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "EPOCHLINE"))}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "include"), str(ROOT / "spark_jobs")]),
        **environment,
    }
    return answer_of(code, *arguments, environment=environment)
