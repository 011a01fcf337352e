"""From which attempt on an epoch's restarts are counted.

Revision ID: 0003
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0003_restarts.sql``."""
    run_script(__file__)
