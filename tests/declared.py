"""What DAG files declare."""

from pathlib import Path

from epochline.config import discovery
from epochline.declare.pipeline import Pipeline


def find_all(folder: Path) -> dict[str, Pipeline]:
    """Every pipeline that a file of the folder declares, by name; every declaration must be valid."""
    declared = discovery.look(folder)
    assert not declared.broken, declared.broken[0]
    return dict(declared.pipelines)
