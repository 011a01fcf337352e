"""Airflow's side: `epoch_dag` and its operators. The only code that imports Airflow."""
