"""Fixtures of the integration tests that long tests use too."""

from tests.integration.machine_world import machine_servers
from tests.integration.spark_session import event_log, spark

__all__ = ["event_log", "machine_servers", "spark"]
