"""When a plan last succeeded, whether or not it wrote an epoch."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
