"""Epochline's plugin, for an Airflow that runs the package from a checkout without an installation."""

from importlib.metadata import entry_points

# Airflow loads an installed package's plugin by its entry point, and reports a second plugin of that name as an error.
if not entry_points(group="airflow.plugins", name="epochline"):
    from epochline.airflow.pages.entry_point import EpochlinePlugin  # noqa: F401 - Airflow looks for it among this file's names
