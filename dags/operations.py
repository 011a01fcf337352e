"""DAGs for operators: one manual DAG for each action, the hourly janitor, and a look at the ends of logs."""

from epochline.airflow.operations import janitor_dag, log_ends_dag, operation_dags

globals().update(operation_dags())

janitor = janitor_dag()
log_ends = log_ends_dag()
