"""The embedded stack: PostgreSQL, Kafka and Airflow servers under one home folder, without Docker."""
