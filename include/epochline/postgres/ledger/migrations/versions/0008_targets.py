"""Which table a claim is of, and a replica identity for every table of the product.

Revision ID: 0008
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0008_targets.sql``."""
    run_script(__file__)
