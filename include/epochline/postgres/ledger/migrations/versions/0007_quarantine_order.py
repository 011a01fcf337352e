"""The order in which pages list quarantined records.

Revision ID: 0007
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0007_quarantine_order.sql``."""
    run_script(__file__)
