"""The adapter for PostgreSQL: the ledger, the target tables, and the SQL statements of both."""
