"""Epochline's pages in Airflow's user interface: all pipelines, one pipeline at its DAG, one epoch at its run.

Airflow finds this plugin by the package's entry point in the group ``airflow.plugins``.
"""

from airflow.plugins_manager import AirflowPlugin

from epochline.airflow.pages.links import LINKS
from epochline.airflow.pages.plugin import APPS, VIEWS


class EpochlinePlugin(AirflowPlugin):
    """Mounts the pages, gives them a place in the navigation and at each DAG and run, and links tasks to them."""

    name = "epochline"
    fastapi_apps = APPS
    external_views = VIEWS
    operator_extra_links = LINKS
