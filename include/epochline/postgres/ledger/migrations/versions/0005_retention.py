"""What Kafka keeps of each log, where each log ended at every plan, and an index of recovered epochs."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
