"""The Kafka clusters that a pipeline's offsets belong to, as the ledger keeps them in one text. Pure.

One source has the id of its cluster. Several have ``input=id`` each, sorted and joined by ``, ``; an id of Kafka has
neither character.
"""

from __future__ import annotations

from collections.abc import Mapping


def cluster_ids(text: str | None) -> dict[str, str]:
    """The id of each input's cluster; a single source has the name ``""``."""
    named = [one.partition("=") for one in text.split(", ")] if text else []
    return {name if equals else "": cluster_id if equals else name for name, equals, cluster_id in named}


def cluster_text(ids: Mapping[str, str | None]) -> str | None:
    """The inverse of `cluster_ids`. Inputs without a cluster are left out; None if none is left."""
    known = {name: one for name, one in ids.items() if one is not None}
    return ", ".join(f"{name}={one}" if name else one for name, one in sorted(known.items())) or None


def moved_clusters(known: str | None, now: str | None) -> dict[str, tuple[str, str]]:
    """The inputs whose cluster is another one than the known one: its known id and its id now."""
    before, after = cluster_ids(known), cluster_ids(now)
    return {name: (before[name], after[name]) for name in before.keys() & after.keys() if before[name] != after[name]}


def with_clusters(known: str | None, now: str | None) -> str | None:
    """The known clusters with those of inputs that were not known."""
    return cluster_text({**cluster_ids(now), **cluster_ids(known)})
