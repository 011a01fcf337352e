"""The two directions of every migration: run its SQL script, and never go back."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from sqlalchemy import Connection


def run_script(migration: str) -> None:
    """Run the ``.sql`` file next to a migration that has the migration's name."""
    execute_script(op.get_bind(), Path(migration).with_suffix(".sql").read_text())


def execute_script(connection: Connection, script: str) -> None:
    """Run several statements in the transaction of the connection. The driver looks for no placeholders in them."""
    connection.exec_driver_sql(script, execution_options={"no_parameters": True})


def downgrade() -> None:
    """Refuse: a downgrade would delete history. A ledger that is newer than the code is refused as well."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
