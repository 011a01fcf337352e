"""Where an adopted log was cut off, what Kafka's consumer group last showed, and declared gaps.

Revision ID: 0009
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0009_other_logs.sql``."""
    run_script(__file__)
