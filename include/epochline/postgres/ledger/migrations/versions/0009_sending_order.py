"""Of an outbox, in which order its rows are sent.

Revision ID: 0009
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0009_sending_order.sql``."""
    run_script(__file__)
