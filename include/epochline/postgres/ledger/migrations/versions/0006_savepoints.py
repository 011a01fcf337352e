"""Savepoints, what epochs replaced in their targets, and epochs that a restore undid.

Revision ID: 0006
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0006_savepoints.sql``."""
    run_script(__file__)
