"""The soak of an hour: needs two cores for itself, and nothing that `make setup` does not install."""

import pytest

from tests.nemesis.__main__ import main


@pytest.mark.long
def test_an_hour_of_faults_loses_nothing_and_doubles_nothing() -> None:
    """F37, I1 to I8: ten million records through three Kafka nodes, a standby, Airflow and Spark, which die at random."""
    assert main(["--minutes", "60"]) == 0
