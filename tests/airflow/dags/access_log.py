"""The example's own declaration, run by hand alone: a test says when an epoch begins."""

import os
import runpy
from pathlib import Path

from epochline import epoch_dag

EXAMPLE = Path(os.environ["EPOCHLINE_PROJECT"]) / "dags" / "access_log.py"

pipeline = runpy.run_path(str(EXAMPLE))["pipeline"].model_copy(update={"schedule": None})

dag = epoch_dag(pipeline)
