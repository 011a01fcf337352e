"""Cast columns to PostgreSQL types."""
