"""When a plan last succeeded, whether or not it wrote an epoch.

Revision ID: 0012
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0012_last_plan.sql``."""
    run_script(__file__)
