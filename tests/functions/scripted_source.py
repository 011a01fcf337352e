"""A source of a user's own that a test steers by files of its folder.

``positions`` holds one position per line, each with the number of its line; ``end`` and ``start`` bound them, ``identity`` names them.
``killed`` counts the processes that are still to be killed while they read, each after its fifth record (E8).
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from epochline.protocol.source import SourcePartition, SourceRecord


class ScriptedSource:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _said(self, name: str, default: str) -> str:
        file = self._folder / name
        return file.read_text().strip() if file.exists() else default

    def _positions(self) -> list[int]:
        return [int(one) for one in self._said("positions", "").split()]

    def partitions(self) -> list[SourcePartition]:
        if (self._folder / "down").exists():
            raise ConnectionError("nobody listens")
        start, end = int(self._said("start", "0")), int(self._said("end", "0"))
        return [SourcePartition(partition=0, identity=self._said("identity", "first"), start=start, end=end)]

    def read(self, partition: int, start: int, until: int) -> Iterator[SourceRecord]:
        read = [(number, one) for number, one in enumerate(self._positions(), 1) if start <= one < until]
        for at, (number, position) in enumerate(read):
            if at == 5:
                self._perhaps_die()
            yield SourceRecord(position=position, value=str(number).encode())

    def _perhaps_die(self) -> None:
        left = int(self._said("killed", "0"))
        if left:
            (self._folder / "killed").write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, partition: int, start: int, until: int) -> int:
        return int(self._said("count", str(sum(start <= one < until for one in self._positions()))))
