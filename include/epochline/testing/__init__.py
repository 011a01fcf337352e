"""Tests of pipelines without servers.

`parse_values` gives the rows that a pipeline makes of some values. The fakes, a ledger in memory and a Kafka in memory,
pass the same contract tests as the real adapters: planning, sealing and committing take milliseconds over them.
"""

from epochline.testing.kafka import FakeKafka
from epochline.testing.ledger import FakeLedger, FakeTransaction
from epochline.testing.parse import parse_values

__all__ = ["FakeKafka", "FakeLedger", "FakeTransaction", "parse_values"]
