"""What proves that nobody wrote a state table past its triggers, and what an epoch leaves unread.

Revision ID: 0010
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0010_watched_state.sql``."""
    run_script(__file__)
