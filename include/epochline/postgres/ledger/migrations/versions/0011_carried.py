"""What a new generation carries over of the one before.

Revision ID: 0011
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0011_carried.sql``."""
    run_script(__file__)
