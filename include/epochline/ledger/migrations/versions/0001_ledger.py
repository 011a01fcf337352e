"""The ledger's first version: pipelines, epochs, the chain, attempts, parts, quarantine, views.

Revision ID: 0001
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything in ``0001_ledger.sql``."""
    bind = op.get_bind().execution_options(no_parameters=True)  # the script holds % signs of its own
    bind.exec_driver_sql(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    """Refuse: a ledger that forgets is worse than one that is newer than the code."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
