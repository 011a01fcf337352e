"""How long each plan took.

Revision ID: 0006
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0006_plan_seconds.sql``."""
    run_script(__file__)
