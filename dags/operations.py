"""What operators do: a manual DAG for each action, and the janitor every hour."""

from epochline.airflow.operations import janitor_dag, operation_dags

globals().update(operation_dags())

janitor = janitor_dag()
