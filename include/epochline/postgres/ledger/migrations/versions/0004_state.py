"""Keyed state: what each epoch left in a pipeline's state tables, and what they hold now.

Revision ID: 0004
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0004_state.sql``."""
    run_script(__file__)
