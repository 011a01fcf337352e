"""The declaration as a drill runs it: the user's own, except for what would reach production or follow the clock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochline.config.registry import registry_connections
from epochline.config.resolve import file_settings, resolve_settings
from epochline.declare.external import CustomSink, Files
from epochline.declare.pipeline import Pipeline
from epochline.declare.settings import FailureRate
from epochline.errors import ConfigurationError

_ANY_NUMBER = 1_000_000
"""Aborted epochs that a drill tolerates. Without a number in the declaration, a profile would decide."""

_DAG_FILE = '''"""Written by a drill."""

from pathlib import Path

from epochline import Pipeline, epoch_dag

dag = epoch_dag(Pipeline.from_stored(Path(__file__).with_name("declaration.json").read_text()))
'''

_TRANSFORM = '''"""Written by a drill: the pipeline's transform; its files have other names here."""

from epochline.declare.specs import load_function

NAMES = {names!r}


def transform(*given):
    frames = load_function({original!r})(*given)
    return {{NAMES.get(name, name): frame for name, frame in frames.items()}} if isinstance(frames, dict) else frames
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """What a drill runs."""

    pipeline: Pipeline
    changes: tuple[str, ...]
    """How it differs from the user's declaration, in words."""
    renamed: Mapping[str, str]
    """The names of sinks of files here, by their own."""
    transform: str | None
    """The user's transform."""

    def write(self, dags: Path, functions: Path) -> None:
        """Write the DAG file, and the transform that knows the names of sinks here, if there is one."""
        for folder in (dags, functions):
            folder.mkdir(exist_ok=True)
        (dags / "declaration.json").write_text(self.pipeline.stored())
        (dags / "drill.py").write_text(_DAG_FILE)
        if self.renamed and self.transform is not None:
            text = _TRANSFORM.format(names=dict(self.renamed), original=self.transform)
            (functions / "epochline_drill_transform.py").write_text(text)


def shadow_of(declared: Pipeline, folder: Path) -> Shadow:
    """The declaration that a drill runs; files go below ``folder``.

    Raises:
        ConfigurationError: a drill cannot copy what the pipeline reads.
    """
    _refuse(declared)
    body: dict[str, Any] = json.loads(declared.stored())
    changes = ["it begins at the first copied record, whatever its startup mode is"]
    inputs = body["source"].get("inputs")
    for source in [body["source"]] if inputs is None else [one["source"] for one in inputs.values()]:
        source["startup"] = "earliest"
    renamed = _files_below(declared, body, folder, changes)
    settings = resolve_settings(declared, file=file_settings())
    if settings.minimum_pause:
        changes.append("there is no pause between two epochs")
    body["settings"]["minimum_pause"] = "PT0S"
    if settings.tolerable_failures is not None:
        changes.append("any number of aborted epochs is tolerated: each kill aborts one, and nobody resumes here")
        body["settings"]["tolerable_failures"] = _ANY_NUMBER
    if isinstance(settings.restart, FailureRate):
        changes.append("attempts fail as often as they are killed: restart is endless")
        body["settings"]["restart"] = {"kind": "endless"}
    if settings.epoch_files is not None:
        changes.append("epochs leave their files in the drill's folder")
        body["settings"]["epoch_files"] = str(folder / "epoch-files")
    if (body.get("windows") or {}).get("time", {}).get("idle_after") is not None:
        changes.append("idle_after is off: the clock closes no window, so that two runs can be compared")
        body["windows"]["time"]["idle_after"] = None
    if body.pop("bounds", None) is not None:
        changes.append("bounds are off: they compare with epochs that a drill lacks, and nobody approves here")
    pipeline = Pipeline.from_stored(json.dumps(body))
    return Shadow(pipeline=pipeline, changes=tuple(changes), renamed=renamed, transform=declared.transform)


def _refuse(declared: Pipeline) -> None:
    others = [one.source.described for name, one in declared.inputs.items() if name not in declared.kafka_sources]
    if others:
        raise ConfigurationError(
            f"{declared.name}: a drill copies records of Kafka, and {', '.join(others)} is a source of your own."
            " Nothing was run."
        )
    if registries := sorted(registry_connections(declared)):
        raise ConfigurationError(
            f"{declared.name}: a drill reaches no server of yours once it has copied the records, and the schemas of"
            f" {', '.join(registries)} are on one. Nothing was run."
        )
    read = [(source.connection, topic) for source in declared.kafka_sources.values() for topic in source.topics]
    twice = [topic for topic, count in Counter(topic for _, topic in set(read)).items() if count > 1]
    twice += [topic for sink in declared.topics for topic in sink.topics if topic in {name for _, name in read}]
    if twice:
        raise ConfigurationError(
            f"{declared.name}: a drill has one Kafka, and the pipeline names different topics {', '.join(twice)} of two"
            " clusters, or reads what it publishes. Nothing was run."
        )


def _files_below(declared: Pipeline, body: dict[str, Any], folder: Path, changes: list[str]) -> dict[str, str]:
    """Let external sinks write below a folder. Returns the names that changed."""
    renamed = {}
    for number, sink in enumerate(declared.sinks):
        path, fields = str(folder / f"files-{number}"), body["sinks"][number]
        if isinstance(sink, Files):
            fields["path"] = path
            renamed[sink.name] = f"files:{path}"
            changes.append(f"{sink.name} is the folder {path}")
        elif isinstance(sink, CustomSink):
            options = {"path": path, "written": list(sink.written.items())}
            fields |= {"sink": "epochline.sinks.shadow:ShadowSink", "options": options}
            fields["label"] = sink.label or sink.sink
            changes.append(f"{sink.name} is left out: its class was not run, its rows went to files in {path}")
    if renamed:
        for field in ("into", "too_late"):
            windows = body.get("windows") or {}
            if windows.get(field) in renamed:
                windows[field] = renamed[windows[field]]
        if declared.transform is not None:
            body["transform"] = "epochline_drill_transform:transform"
    return renamed
