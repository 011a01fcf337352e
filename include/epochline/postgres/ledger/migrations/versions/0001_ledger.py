"""The tables of the ledger, with their constraints and triggers."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
