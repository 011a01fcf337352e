"""Where a project's files are: the checkout, the folder with the declarations, and the home of the stack.

In a checkout, its folder is the project. Outside a checkout, the current folder is. The folder of installed packages
never is.
"""

import os
from pathlib import Path


def checkout() -> Path | None:
    """The checkout that this package is imported from, the folder that holds ``include/``; None if it is installed."""
    include = Path(__file__).resolve().parents[2]
    return include.parent if include.name == "include" else None


def project_folder() -> Path:
    """``EPOCHLINE_PROJECT``, or the checkout, or the current folder: it holds ``dags/`` and ``spark_jobs/``."""
    return _named("EPOCHLINE_PROJECT") or checkout() or Path.cwd()


def dags_folder(otherwise: Path | None = None) -> Path:
    """``EPOCHLINE_DAGS``, or else the given folder, or else ``dags/`` of the project."""
    return _named("EPOCHLINE_DAGS") or otherwise or project_folder() / "dags"


def functions_folder() -> Path:
    """The project's folder from which functions of pipelines are imported."""
    return project_folder() / "spark_jobs"


def home_folder() -> Path:
    """The folder of the stack: ``EPOCHLINE_HOME``, or ``.epochline/`` of the checkout, or that of the project."""
    return _named("EPOCHLINE_HOME") or (checkout() or project_folder()) / ".epochline"


def _named(variable: str) -> Path | None:
    name = os.environ.get(variable)
    return Path(name).expanduser().absolute() if name else None
