"""Topics of one of several sources, as the source names them and as the ledger does. Pure.

In the ledger, both the name and the id of a topic begin with the input's name. So two clusters may have topics of one
name, two sources of the user's own may have equal identities, and each has its own chain.
"""

from __future__ import annotations

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
