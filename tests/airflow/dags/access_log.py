"""The example's own declaration, run by hand alone: a test says when an epoch begins."""

from epochline import epoch_dag
from epochline.config.discovery import find
from epochline.config.places import project_folder

pipeline = find("access_log", project_folder() / "dags").model_copy(update={"schedule": None})

dag = epoch_dag(pipeline)
