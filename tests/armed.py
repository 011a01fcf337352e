"""Failpoints that act in the process of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from epochline.failpoints import arm


@contextmanager
def armed(failpoint: str) -> Iterator[None]:
    """Arm failpoints, as ``EPOCHLINE_FAILPOINT`` would, until the block ends."""
    arm({"EPOCHLINE_FAILPOINT": failpoint})
    try:
        yield
    finally:
        arm({})
