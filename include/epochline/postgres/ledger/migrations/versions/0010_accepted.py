"""What the ledger lost when it went back in time, and an operator accepted.

Revision ID: 0010
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0010_accepted.sql``."""
    run_script(__file__)
