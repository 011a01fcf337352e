"""The embedded stack: PostgreSQL, Kafka and Airflow as real servers under one home, without Docker."""
