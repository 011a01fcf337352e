"""Alembic's environment: the connection is handed in by ``epochline.postgres.ledger.migrate``."""

from alembic import context

config = context.config
connection = config.attributes["connection"]
context.configure(connection=connection, version_table_schema="epochline", transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
