"""Receipts per epoch and sink, and what consumers of epochs took.

Revision ID: 0007
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0007_receipts.sql``."""
    run_script(__file__)
