"""Declaration of what a pipeline reads: topics, or a source of the user's own. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from operator import not_
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, Discriminator, Field, Tag, field_validator, model_validator

from epochline.declare.base import ClassReference, DeclarationModel, Names, check_topic, refuse_names, repeated
from epochline.declare.specs import CustomSourceSpec
from epochline.declare.topic import CONTROL_TOPIC


class FromGroup(DeclarationModel):
    """Begin at the offsets of a consumer group, such as that of an earlier Flink job.

    Args:
        group: the group's id. Its offsets are read once and never written.
        reset: what to do if the group has no offset for a partition, or one outside the log: begin at the
            ``earliest`` or ``latest`` offset, or ``fail`` the plan.
    """

    kind: Literal["group"] = "group"
    group: str
    reset: Literal["earliest", "latest", "fail"] = "fail"

    @model_validator(mode="before")
    @classmethod
    def _group_is_named(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and not fields.get("group"):
            raise ValueError("group: give the group.id of the consumer group whose committed offsets are the start")
        return fields

    def __str__(self) -> str:
        return f"group {self.group}"


class FromTimestamp(DeclarationModel):
    """Begin at the first record with a timestamp at or after a moment; at the end if there is no such record.

    Args:
        timestamp: the moment, with a time zone.
    """

    kind: Literal["timestamp"] = "timestamp"
    timestamp: AwareDatetime

    def __str__(self) -> str:
        return f"timestamp {self.timestamp.isoformat()}"


class FromOffsets(DeclarationModel):
    """Begin at given offsets: one for each partition that the topic has when the pipeline first sees it.

    Args:
        offsets: by topic and partition, the first offset to read. An offset outside the log is refused.
    """

    kind: Literal["offsets"] = "offsets"
    offsets: dict[str, dict[int, int]]

    @field_validator("offsets")
    @classmethod
    def _are_offsets(cls, offsets: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
        if not any(offsets.values()):
            raise ValueError("name a topic, its partitions and their offsets: {'orders': {0: 42}}")
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                if partition < 0 or offset < 0:
                    raise ValueError(f"{topic}-{partition}: invalid offset {offset}; partitions and offsets start at 0")
        return offsets

    def __str__(self) -> str:
        return "offsets"


def _kind(startup: Any) -> str | None:
    if isinstance(startup, str):
        return "word" if startup in ("earliest", "latest") else None
    return startup.get("kind") if isinstance(startup, dict) else getattr(startup, "kind", None)


Startup = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")]
    | Annotated[FromGroup, Tag("group")]
    | Annotated[FromTimestamp, Tag("timestamp")]
    | Annotated[FromOffsets, Tag("offsets")],
    Discriminator(
        _kind,
        custom_error_type="startup",
        custom_error_message="write 'earliest', 'latest', FromGroup(…), FromTimestamp(…) or FromOffsets(…)",
    ),
]


class KafkaSource(DeclarationModel):
    """The topics that a pipeline reads, where it begins, and how much an epoch reads at most.

    Args:
        topics: names of topics. Either this or ``pattern``.
        pattern: regular expression that whole topic names match; a topic that matches later joins at offset 0.
        startup: where a topic begins that is new to the ledger: ``earliest``, ``latest``, `FromGroup`,
            `FromTimestamp` or `FromOffsets`. Resolved once, then kept as the partition's origin.
        records_per_epoch: most offsets in one epoch, shared between partitions in proportion to their backlog.
        mirror: whether each commit writes the heads to the consumer group ``epochline.<pipeline>``, for monitors and as
            evidence. Without it only post-commit sinks reveal a restored ledger.
        gaps_expected: allow offsets without a record that nothing explains; the seal then does not count them.
        connection: id of the Airflow connection of the brokers.
    """

    topics: Names = ()
    pattern: str | None = None
    startup: Startup = "earliest"
    records_per_epoch: int = Field(default=1_000_000, gt=0)
    mirror: bool = Field(default=True, exclude_if=bool)
    gaps_expected: bool = False
    connection: str = "epochline_kafka"

    @model_validator(mode="after")
    def _topics_or_pattern(self) -> Self:
        if bool(self.topics) == bool(self.pattern):
            raise ValueError("give either topics or pattern, and not both")
        for topic in self.topics:
            check_topic(topic, "topics: ")
        if repeated(self.topics):
            raise ValueError("topics: a topic is named twice")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"pattern: not a regular expression: {error}") from error
        if isinstance(self.startup, FromOffsets) and self.topics:
            strangers = sorted(set(self.startup.offsets) - set(self.topics))
            refuse_names("startup: gives offsets for", strangers, ", which topics does not name")
        return self

    @property
    def described(self) -> str:
        """What is read, for people."""
        return ", ".join(self.topics) or f"topics that match {self.pattern}"

    @property
    def where(self) -> str:
        """What is asked for offsets: the connection."""
        return self.connection

    def mirrors(self, topic: str) -> bool:
        """Whether a commit writes the topic's heads to the consumer group."""
        return self.mirror and self.reads(topic)

    def reads(self, topic: str) -> bool:
        """Whether a topic is declared, by name or by the pattern. No pattern matches the topic of the markers."""
        if self.pattern is None:
            return topic in self.topics
        return topic != CONTROL_TOPIC and re.fullmatch(self.pattern, topic) is not None

    def keeps(self, topic: str) -> bool:
        """Whether a topic with a head in the ledger is still read. A pattern reads a topic even after its deletion."""
        return topic in self.topics if self.pattern is None else topic != CONTROL_TOPIC

    def without(self, topics: Collection[str]) -> KafkaSource | None:
        """The source without topics; None if nothing is left."""
        if self.pattern is not None:
            return self
        left = tuple(topic for topic in self.topics if topic not in topics)
        return self.model_copy(update={"topics": left}) if left else None


class CustomSource(DeclarationModel):
    """A source of the user's own: a class with the methods of `epochline.protocol.source.Source`.

    Args:
        source: ``module:Class``, constructed with ``options`` as keyword arguments on the driver and on executors.
        options: JSON values. The ledger keeps them with the declaration, so they must hold no secrets.
        label: name of the source in the ledger and in messages, in place of a topic; by default ``source``.
        connection: id of a connection, for secrets. The class then gets it as the argument ``connection``, an
            `epochline.config.connections.Connection`.
        positions: ``dense`` if every position has a record, ``sparse`` if some may have none (docs/sources.md).
        startup: where a partition begins that the pipeline has on its first plan: ``earliest`` or ``latest``.
        records_per_epoch: most offsets in one epoch, shared between partitions in proportion to their backlog.
    """

    source: ClassReference
    options: dict[str, Any] = Field(default_factory=dict)
    label: str | None = Field(default=None, min_length=1)
    connection: str | None = Field(default=None, min_length=1, exclude_if=not_)
    positions: Literal["dense", "sparse"] = "dense"
    startup: Literal["earliest", "latest"] = "earliest"
    records_per_epoch: int = Field(default=1_000_000, gt=0)

    @property
    def name(self) -> str:
        return self.label or self.source

    @property
    def topics(self) -> tuple[str, ...]:
        """The source's name, which the ledger keeps where Kafka's topics have theirs."""
        return (self.name,)

    pattern: ClassVar[None] = None
    mirror: ClassVar[bool] = False
    """Only Kafka has patterns and consumer groups."""

    def mirrors(self, topic: str) -> bool:
        return False

    @property
    def gaps_expected(self) -> bool:
        """Whether positions may have no record."""
        return self.positions == "sparse"

    @property
    def described(self) -> str:
        return self.name

    @property
    def where(self) -> str:
        return self.source

    def reads(self, topic: str) -> bool:
        return topic == self.name

    def keeps(self, topic: str) -> bool:
        return topic == self.name

    def without(self, topics: Collection[str]) -> CustomSource | None:
        return None if self.name in topics else self

    @property
    def spec(self) -> CustomSourceSpec:
        return self._as(CustomSourceSpec, dense=self.positions == "dense")


def kind_of_source(source: Any) -> str | None:
    """Tell the kind of a declared source by its class, or by the fields that only that kind has."""
    if isinstance(source, KafkaSource) or (isinstance(source, dict) and set(source) <= set(KafkaSource.model_fields)):
        return "kafka"
    return "custom" if isinstance(source, CustomSource) or (isinstance(source, dict) and "source" in source) else None


OneSource = KafkaSource | CustomSource
