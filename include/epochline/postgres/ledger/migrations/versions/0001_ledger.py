"""The tables of the ledger, with their constraints and triggers.

Revision ID: 0001
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Create everything in ``0001_ledger.sql``."""
    run_script(__file__)
