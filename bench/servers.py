"""The servers of a measurement."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochline.local.stack import Stack


@contextmanager
def servers(*parts: str) -> Iterator[Stack]:
    """Parts of a stack in a home of its own, which is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="epochline-bench-") as folder:
        stack = Stack(Path(folder) / "home")
        stack.up(parts)
        try:
            yield stack
        finally:
            stack.down(wipe=True)
