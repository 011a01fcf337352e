"""Roles of least privilege: the function that makes them, where it may, and that grants to them.

It is called after every migration (`epochline.ledger.migrate`), not here: roles belong to the whole server and may
come, or come back, after the tables.

Revision ID: 0003
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run everything in ``0003_roles.sql``."""
    bind = op.get_bind().execution_options(no_parameters=True)
    bind.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    """Refuse: a ledger that forgets is worse than one that is newer than the code."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
