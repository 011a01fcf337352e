"""What operators do: actions, pauses, dropped pipelines, requeues, an origin moved back; settings in force per epoch.

Revision ID: 0002
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0002_operators.sql``."""
    run_script(__file__)
