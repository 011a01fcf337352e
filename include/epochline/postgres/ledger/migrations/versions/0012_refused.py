"""Rows that targets refused, and the records that later attempts leave out for them.

Revision ID: 0012
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0012_refused.sql``."""
    run_script(__file__)
