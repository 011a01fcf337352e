"""DAGs for operators."""

from epochline.airflow.operation_dags import *  # noqa: F403 - Airflow takes every DAG of that module
