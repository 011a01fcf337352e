"""What the sinks that follow a commit show: topics and files."""

from collections import Counter
from pathlib import Path

from epochline.declare.external import Files
from epochline.declare.pipeline import Pipeline
from epochline.sinks.file_manifest import committed_files
from tests.crash.watching import all_decided
from tests.integration.sinks_world import seen
from tests.reading import rows_in_folder


def values_in_topic(bootstrap: str, topic: str) -> Counter[bytes]:
    all_decided(bootstrap, topic)
    return Counter((record.value or "").encode() for record in seen(bootstrap, topic))


def rows_in_files(files: Files) -> Counter[tuple[int, int, bytes]]:
    """By partition and offset of their record, the rows that a follower of the manifest is given."""
    rows = rows_in_folder(files.path, files.format)
    return Counter((row["_partition"], row["_offset"], row["value"].encode()) for row in rows)


def files_left_over(pipeline: Pipeline) -> list[Path]:
    """What lies in the folders of file sinks and belongs to no epoch that is shown."""
    left: list[Path] = []
    for sink in pipeline.external:
        assert isinstance(sink, Files)
        shown = {Path(file) for epoch in committed_files(sink.path) for file in epoch.files}
        staging, manifest = Path(sink.path, "_epochline/staging"), Path(sink.path, "_epochline/manifest")
        found = {path for path in Path(sink.path).rglob("*") if path.is_file() and path.parent != manifest}
        left += sorted((found - shown) | set(staging.glob("*")))
    return left
