"""What the embedded Airflow is configured with."""

import json
from pathlib import Path

from epochline.local import credentials
from epochline.local.stack import Stack


def test_a_user_whom_somebody_added_keeps_the_password_when_airflow_starts_again(tmp_path: Path) -> None:
    """Airflow's simple auth manager keeps a password for each of its users in one file."""
    stack = Stack(tmp_path / "home")
    stack.home.create()
    credentials.ensure(stack.home)
    stack.airflow.folder.mkdir()
    stack.airflow.write_password_file()
    passwords = json.loads(stack.airflow.password_file.read_text())
    stack.airflow.password_file.write_text(json.dumps({**passwords, "eve": "a password", "admin": "an old one"}))

    stack.airflow.write_password_file()

    assert json.loads(stack.airflow.password_file.read_text()) == {**passwords, "eve": "a password"}
    assert stack.airflow.password_file.stat().st_mode & 0o077 == 0
