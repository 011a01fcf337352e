"""Of an outbox, in which order its rows are sent.

Revision ID: 0009
"""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run everything in ``0009_sending_order.sql``."""
    bind = op.get_bind().execution_options(no_parameters=True)
    bind.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    """Refuse: a ledger that forgets is worse than one that is newer than the code."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
