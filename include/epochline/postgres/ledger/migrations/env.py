"""Alembic's environment. ``epochline.postgres.ledger.migrate`` passes the connection."""

from alembic import context

config = context.config
connection = config.attributes["connection"]
context.configure(connection=connection, version_table_schema="epochline", transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
