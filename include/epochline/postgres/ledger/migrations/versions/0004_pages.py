"""Where the logs ended when a plan asked Kafka, and indexes by state and by the time of the plan."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
