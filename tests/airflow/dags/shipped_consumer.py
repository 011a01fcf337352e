"""The shipped consumer of epochs; Airflow alone reads this file, because the consumer declares no pipeline."""

from epochline.config.discovery import EXAMPLES
from epochline.config.places import project_folder
from shipped_file import loaded

dag = loaded(project_folder() / "dags" / EXAMPLES / "epoch_summaries.py").dag
