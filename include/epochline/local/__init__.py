"""The embedded stack: PostgreSQL, Kafka, Spark and Airflow servers under one home folder, without Docker."""
