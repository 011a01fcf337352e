"""Event time: the watermark that each epoch left, and the newest event time of each partition.

Revision ID: 0005
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0005_event_time.sql``."""
    run_script(__file__)
