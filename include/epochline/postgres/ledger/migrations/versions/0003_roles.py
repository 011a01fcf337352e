"""Roles of least privilege: the function that makes them, where it may, and that grants to them.

It is called after every migration (`epochline.postgres.ledger.migrate`), not here: roles belong to the whole server
and may come, or come back, after the tables.

Revision ID: 0003
"""

from epochline.postgres.ledger.forward import downgrade, run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
__all__ = ["downgrade", "upgrade"]


def upgrade() -> None:
    """Run everything in ``0003_roles.sql``."""
    run_script(__file__)
