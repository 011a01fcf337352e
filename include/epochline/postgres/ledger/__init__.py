"""The ledger: one adapter for each side of `epochline.ports.Transaction`, and its migrations."""
