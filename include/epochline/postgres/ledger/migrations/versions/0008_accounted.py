"""Of an upsert, what became of every staged row.

Revision ID: 0008
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0008_accounted.sql``."""
    run_script(__file__)
