"""The oldest and the newest of Kafka's timestamps in each planned range."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
