"""What Kafka keeps of each log, where each log ended at every plan, and an index of recovered epochs.

Revision ID: 0005
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0005_retention.sql``."""
    run_script(__file__)
