"""OpenLineage's specification: what an event has to be. The schemas in ``data/openlineage`` are the specification's."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from referencing import Registry, Resource

SPECIFICATION = Path(__file__).with_name("data") / "openlineage"
OWN = Path(__file__).parents[1] / "include" / "epochline" / "airflow" / "facets"
"""The schemas of our own facets, as the package brings them."""

SCHEMAS: Mapping[str, Any] = {
    schema["$id"]: schema
    for folder in (SPECIFICATION, OWN)
    for schema in (json.loads(file.read_text()) for file in sorted(folder.rglob("*.json")))
}
_REGISTRY: Registry[Any] = Registry().with_resources(
    (url, Resource.from_contents(schema)) for url, schema in SCHEMAS.items()
)
_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"

Event = Mapping[str, Any]


def problems(event: Event) -> list[str]:
    """What the specification has against an event, each facet's own schema included where it is among `SCHEMAS`."""
    found = [f"event: {error.message}" for error in _against(_EVENT, event)]
    for name, facet in facets(event):
        url = facet["_schemaURL"]
        if url.partition("#")[0] in SCHEMAS:
            found += [f"{name}: {error.message}" for error in _against(url, facet)]
            found += [f"{name}: {url} names no definition"] * ("#/$defs/" not in url)
        elif name.startswith("epochline"):
            found.append(f"{name}: {url} is not in the package")
    return found


def _against(url: str, instance: Any) -> Iterator[Any]:
    validator = Draft202012Validator(
        {"$ref": url}, registry=_REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    yield from validator.iter_errors(instance)


def facets(event: Event) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every facet of an event with its name."""
    for holder in (event["run"], event["job"]):
        yield from holder.get("facets", {}).items()
    for datasets, of_run in (("inputs", "inputFacets"), ("outputs", "outputFacets")):
        for dataset in event.get(datasets, ()):
            yield from dataset.get("facets", {}).items()
            yield from dataset.get(of_run, {}).items()
