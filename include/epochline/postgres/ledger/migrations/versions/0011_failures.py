"""The class of an error and the command that goes on after it, apart from its message.

Revision ID: 0011
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run ``0011_failures.sql``."""
    run_script(__file__)
