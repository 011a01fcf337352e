"""The ledger as pages inside Airflow's user interface: read by a reader's login, and without asking Kafka."""
