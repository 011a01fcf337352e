"""Where an adopted log was cut off, what Kafka's consumer group last showed, and declared gaps."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
