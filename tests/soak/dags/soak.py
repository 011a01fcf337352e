"""The soak's pipeline under Airflow: it runs by its schedule, while a nemesis breaks what it needs."""

from datetime import timedelta

from epochline import epoch_dag
from tests.soak.pipelines import SCHEDULED, declared

soak_airflow = epoch_dag(declared(SCHEDULED, timedelta(seconds=10)))
