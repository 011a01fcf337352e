"""Which table a claim is of, and a replica identity for every table of the product."""

from epochline.postgres.ledger.forward import migration

revision, down_revision, upgrade, downgrade = migration(__file__)
