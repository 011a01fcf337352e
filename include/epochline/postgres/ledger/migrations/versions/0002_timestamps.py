"""The oldest and the newest of Kafka's timestamps in each planned range.

Revision ID: 0002
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0002_timestamps.sql``."""
    run_script(__file__)
