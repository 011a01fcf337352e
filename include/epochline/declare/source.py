"""Declaration of the topics that a pipeline reads. Pure."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from epochline.declare.base import DeclarationModel
from epochline.declare.startup import FromOffsets, Startup


class KafkaSource(DeclarationModel):
    """The topics that a pipeline reads, where it begins, and how much an epoch reads at most.

    Args:
        topics: names of topics. Either this or ``pattern``.
        pattern: regular expression that whole topic names match; a topic that matches later joins at offset 0.
        startup: where a topic begins that is new to the ledger: ``earliest``, ``latest``, `FromGroup`,
            `FromTimestamp` or `FromOffsets`. Resolved once, then kept as the partition's origin.
        records_per_epoch: most offsets in one epoch, shared between partitions in proportion to their backlog.
        gaps_expected: allow offsets without a record, although the broker reports no reason for them.
        connection: id of the Airflow connection of the brokers.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    startup: Startup = "earliest"
    records_per_epoch: int = Field(default=1_000_000, gt=0)
    gaps_expected: bool = False
    connection: str = "epochline_kafka"

    @field_validator("topics", mode="before")
    @classmethod
    def _one_topic_may_stand_alone(cls, topics: Any) -> Any:
        return (topics,) if isinstance(topics, str) else topics

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> Self:
        if bool(self.topics) == bool(self.pattern):
            raise ValueError("give either topics or pattern, and not both")
        for topic in self.topics:
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
                raise ValueError(f"topics: Kafka allows no topic named {topic!r} (letters, digits, . _ -, up to 249)")
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics: a topic is named twice")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern: not a regular expression: {error}") from error
        if isinstance(self.startup, FromOffsets) and self.topics:
            strangers = sorted(set(self.startup.offsets) - set(self.topics))
            if strangers:
                raise ValueError(f"startup: gives offsets for {', '.join(strangers)}, which topics does not name")
        return self

    def reads(self, topic: str) -> bool:
        """Whether a topic is declared, by name or by the pattern."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None
