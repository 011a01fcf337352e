"""A run with ``--strict-skips`` fails where a test is skipped for a reason that nobody listed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import LISTED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("reason", "code"), [(LISTED[0], 0), ("no PgBouncer on this machine", 1)])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_unlisted_skip_fails_the_run_and_is_named(tmp_path: Path, processes: str, reason: str, code: int) -> None:
    (tmp_path / "test_some.py").write_text(
        f"import pytest\n\ndef test_one():\n    pytest.skip({reason!r})\n\ndef test_two():\n    pass\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.skips", "-n", processes, "--strict-skips"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == code, done.stdout
    assert f"1 skipped, {code} for a reason not in tests/skips.py" in done.stdout
    assert ("test_some.py::test_one: no PgBouncer" in done.stdout) is bool(code)
