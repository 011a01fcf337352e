"""The pipeline of the nemesis under Airflow."""

from datetime import timedelta

from epochline import epoch_dag
from tests.nemesis.declared import declared

dag = epoch_dag(declared(timedelta(seconds=10)))
