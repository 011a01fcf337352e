"""Where the epoch files of a pipeline lie."""

from __future__ import annotations

import os
from pathlib import Path


def epoch_folder(declared: str, pipeline: str) -> Path:
    """The folder of a pipeline's epoch files below the setting ``epoch_files``: absolute, and not created here.

    A relative setting is below ``$EPOCHLINE_HOME``, or below ``.epochline`` of the checkout.
    """
    named = os.environ.get("EPOCHLINE_HOME")
    home = Path(named).expanduser() if named else Path(__file__).resolve().parents[3] / ".epochline"
    return (home / Path(declared).expanduser() / pipeline).absolute()
