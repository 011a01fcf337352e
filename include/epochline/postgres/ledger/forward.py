"""What every migration does: run the SQL script beside it, and never go back."""

from __future__ import annotations

from pathlib import Path

from alembic import op


def run_script(migration: str) -> None:
    """Run everything in the ``.sql`` file that bears a migration's name."""
    bind = op.get_bind().execution_options(no_parameters=True)  # a script may hold % signs of its own
    bind.exec_driver_sql(Path(migration).with_suffix(".sql").read_text())


def downgrade() -> None:
    """Refuse: a ledger that forgets is worse than one that is newer than the code."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
