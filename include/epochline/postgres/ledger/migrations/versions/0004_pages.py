"""Where the logs ended when a plan asked Kafka, and indexes by state and by the time of the plan.

Revision ID: 0004
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0004_pages.sql``."""
    run_script(__file__)
