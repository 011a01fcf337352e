"""What proves that nobody wrote a state table past its triggers, and what an epoch leaves unread."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
