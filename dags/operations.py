"""DAGs for operators: one manual DAG for each action, and the hourly janitor."""

from epochline.airflow.operations import janitor_dag, operation_dags

globals().update(operation_dags())

janitor = janitor_dag()
