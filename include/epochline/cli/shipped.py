"""What is in a checkout only: the demo's and the examples' declarations and functions."""

from pathlib import Path

from epochline.config.places import checkout
from epochline.errors import ConfigurationError


def shipped_folder() -> Path:
    """The checkout, whose ``dags/`` and ``spark_jobs/`` hold the demo and the examples.

    Raises `ConfigurationError` outside a checkout.
    """
    folder = checkout()
    if folder is None:
        raise ConfigurationError(
            "the demo and the examples are in Epochline's repository, not in the installed package. Nothing was"
            " started. Run `git clone https://github.com/epochline/epochline`, and there `make setup` and this command."
        )
    return folder
