"""What stands for a third-party sink in a drill: a folder of files that takes the sink's rows."""

from collections.abc import Sequence

from epochline.declare.specs import FilesSpec
from epochline.sinks.files import FileSink


class ShadowSink(FileSink):
    """A folder of JSON files with the columns of a `CustomSink`."""

    def __init__(self, path: str, written: Sequence[tuple[str, str]]) -> None:
        super().__init__(FilesSpec(name=f"files:{path}", path=path, format="json", written=dict(written)))
