"""Topics and Kafka clusters of one of several sources, as the source names them and as the ledger does. Pure.

In the ledger, both the name and the id of a topic begin with the input's name. So two clusters may have topics of one
name, two sources of the user's own may have equal identities, and each has its own chain. The ledger keeps the clusters
in one text: the id of a single source's cluster, or ``input=id`` of each input, sorted and joined by ``, ``.
"""

from collections.abc import Mapping
from dataclasses import replace

from epochline.declare.names import ledger_prefix
from epochline.protocol.offsets import TopicPartition


def in_ledger(source: str, tp: TopicPartition) -> TopicPartition:
    """A partition of a source, as the ledger names it."""
    prefix = ledger_prefix(source)
    return replace(tp, topic=f"{prefix}{tp.topic}", topic_id=f"{prefix}{tp.topic_id}")


def in_source(source: str, tp: TopicPartition) -> TopicPartition:
    """A partition in the ledger, as its source names it."""
    prefix = ledger_prefix(source)
    return replace(tp, topic=tp.topic.removeprefix(prefix), topic_id=tp.topic_id.removeprefix(prefix))


def belongs_to(source: str, topic: str) -> bool:
    """Whether a topic in the ledger is of this source; every topic is of a single one, which has no name."""
    return topic.startswith(ledger_prefix(source))


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
