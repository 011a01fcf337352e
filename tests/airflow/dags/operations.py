"""What operators do by DAGs, as in ``dags/operations.py`` of the product."""

from epochline.airflow.operations import operation_dags

globals().update(operation_dags())
