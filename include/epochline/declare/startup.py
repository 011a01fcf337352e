"""Declaration of where a topic begins that is new to the ledger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Discriminator, Tag, field_validator, model_validator

from epochline.declare.base import DeclarationModel


class FromGroup(DeclarationModel):
    """Begin at the offsets of a consumer group: the group of an earlier job on the topic, such as a Flink job.

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
