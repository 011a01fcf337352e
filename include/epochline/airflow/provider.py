"""What Airflow lists about this package among its providers; the entry point ``apache_airflow_provider``."""

from typing import Any

from epochline.declare.version import VERSION


def get_provider_info() -> dict[str, Any]:
    """The package as Airflow's ``provider_info.schema.json`` describes it.

    The links at tasks are the plugin's. They do not belong here too: these entries are for operators that name links.
    """
    return {
        "package-name": "epochline",
        "name": "Epochline",
        "description": "Exactly-once epochs from Kafka to PostgreSQL, kept in a ledger that SQL can read.",
        "versions": [VERSION],
    }
