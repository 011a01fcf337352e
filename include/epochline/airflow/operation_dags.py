"""Every DAG for operators: a manual DAG for each action, the hourly janitor, and a look at the ends of logs.

A file of the DAGs folder takes them all with one line, in which Airflow's safe mode finds the words that it looks for:
``from epochline.airflow.operation_dags import *``
"""

from epochline.airflow.operations import janitor_dag, log_ends_dag, operation_dags

_DAGS = {**operation_dags(), "janitor": janitor_dag(), "log_ends": log_ends_dag()}

globals().update(_DAGS)
__all__ = list(_DAGS)
