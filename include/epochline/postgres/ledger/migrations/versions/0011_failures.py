"""The class of an error and the command that goes on after it, apart from its message."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
