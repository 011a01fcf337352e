"""Fakes that pass the same contract tests as the real adapters: a ledger in memory and a Kafka in memory.

Planning, sealing and committing take milliseconds over them, also in the tests of a pipeline's author.
"""

from epochline.testing.kafka import FakeKafka
from epochline.testing.ledger import FakeLedger, FakeTransaction

__all__ = ["FakeKafka", "FakeLedger", "FakeTransaction"]
