"""The adapter for PostgreSQL: the ledger, the target tables, and the statements of both."""
