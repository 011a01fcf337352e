"""Declaration of a pipeline that reads several sources in one epoch, each with its own parse. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from epochline.declare.base import Columns, DeclarationModel, check_columns, check_function, check_plain_name
from epochline.declare.names import ledger_prefix
from epochline.declare.parsers import ReadyMadeParser
from epochline.declare.source import CustomSource, KafkaSource, OneSource, kind_of_source
from epochline.errors import ConfigurationError

_UNKNOWN = (
    "unknown type of source; there are KafkaSource(topics=…) and CustomSource(source='module:Class'), which takes a"
    " class of your own"
)


class Input(DeclarationModel):
    """One of several sources of a pipeline, and how its records are parsed.

    Args:
        source: topics of one Kafka cluster, or a `CustomSource`.
        parse: a ready-made parser, or ``module:function``, as for a `Pipeline`.
        record: columns and PostgreSQL types that the function ``parse`` returns (not for a ready-made parser).
        explode: name of a list column of ``parse``. Each element becomes a row, numbered ``_row``.
    """

    source: Annotated[
        Annotated[KafkaSource, Tag("kafka")] | Annotated[CustomSource, Tag("custom")],
        Discriminator(kind_of_source, custom_error_type="source", custom_error_message=f"{_UNKNOWN} (docs/sources.md)"),
    ]
    parse: str | ReadyMadeParser
    record: Columns = Field(default_factory=dict)
    explode: str | None = None

    _function_exists = field_validator("parse")(check_function)

    @model_validator(mode="after")
    def _one_limit_for_all(self) -> Self:
        if self.source.records_per_epoch != type(self.source).model_fields["records_per_epoch"].default:
            raise ValueError("source.records_per_epoch: an epoch has one limit for all sources; give it to Sources")
        self.check_record()
        return self

    def check_record(self) -> None:
        """Check that parse and record agree; raises ``ValueError``."""
        if isinstance(self.parse, str):
            if not self.record:
                raise ValueError("record: name the columns and types that the function parse returns")
            return
        if self.record:
            raise ValueError("record: a ready-made parser brings its own columns; take it out")
        try:
            check_columns(self.parse.record)
        except ValueError as error:
            raise ValueError(f"parse: {error}") from error

    @property
    def parsed_columns(self) -> dict[str, str]:
        """Columns and types of the parsed record."""
        return self.record if isinstance(self.parse, str) else self.parse.record


class Sources(DeclarationModel):
    """Several sources that one pipeline reads, each epoch a range of each; a transform joins them.

    Args:
        inputs: by name (letters, digits, ``_``, ``-`` and ``.``), at least two.
        records_per_epoch: most offsets in one epoch, shared between the partitions of all sources in proportion to
            their backlog.
    """

    inputs: dict[str, Input] = Field(min_length=2)
    records_per_epoch: int = Field(default=1_000_000, gt=0)

    @field_validator("inputs")
    @classmethod
    def _names_are_plain(cls, inputs: dict[str, Input]) -> dict[str, Input]:
        return {check_plain_name(name): input_ for name, input_ in inputs.items()}

    @model_validator(mode="after")
    def _one_mirror_for_a_topic(self) -> Self:
        """Two heads of one partition cannot both be the offset of one consumer group."""
        read_by: dict[tuple[str, str], str] = {}
        for name, source in ((name, input_.source) for name, input_ in self.inputs.items()):
            if not isinstance(source, KafkaSource) or not source.mirror:
                continue
            for topic in source.topics:
                other = read_by.setdefault((source.connection, topic), name)
                if other != name:
                    raise ValueError(
                        f"inputs.{other} and inputs.{name} both read topic {topic} of {source.connection}: read it once"
                        " and use its rows twice in the transform, or give one of them mirror=False"
                    )
        return self

    def _of(self, topic: str) -> tuple[OneSource, str] | None:
        name, slash, own = topic.partition("/")
        return (self.inputs[name].source, own) if slash and name in self.inputs else None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are declared by name, as the ledger names them."""
        return tuple(
            ledger_prefix(name) + topic for name, input_ in self.inputs.items() for topic in input_.source.topics
        )

    @property
    def described(self) -> str:
        return "; ".join(f"{name}: {input_.source.described}" for name, input_ in self.inputs.items())

    @property
    def mirror(self) -> bool:
        """Whether a commit writes the heads of any source to a consumer group."""
        return any(input_.source.mirror for input_ in self.inputs.values())

    def mirrors(self, topic: str) -> bool:
        own = self._of(topic)
        return own is not None and own[0].mirrors(own[1])

    def reads(self, topic: str) -> bool:
        own = self._of(topic)
        return own is not None and own[0].reads(own[1])

    def keeps(self, topic: str) -> bool:
        own = self._of(topic)
        return own is not None and own[0].keeps(own[1])

    def without(self, topics: Collection[str]) -> Sources | None:
        """The sources without topics, as the ledger names them; None if nothing is left."""
        left = {}
        for name, input_ in self.inputs.items():
            prefix = ledger_prefix(name)
            source = input_.source.without([topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix)])
            if source is not None:
                left[name] = input_.model_copy(update={"source": source})
        return self.model_copy(update={"inputs": left}) if left else None


DeclaredSource = KafkaSource | CustomSource | Sources


def _kind(source: Any) -> str | None:
    if isinstance(source, Sources) or (isinstance(source, dict) and "inputs" in source):
        return "several"
    return kind_of_source(source)


AnySource = Annotated[
    Annotated[KafkaSource, Tag("kafka")] | Annotated[CustomSource, Tag("custom")] | Annotated[Sources, Tag("several")],
    Discriminator(
        _kind,
        custom_error_type="source",
        custom_error_message=f"{_UNKNOWN}, and Sources(inputs=…) for several of them (docs/sources.md)",
    ),
]


def one_source(source: DeclaredSource) -> OneSource:
    """A source that is not several; a caller that may have several asks `epochline.sources.several`."""
    if isinstance(source, Sources):
        raise TypeError(f"{source.described}: each source is asked for itself")
    return source


def require_one(pipeline: str, source: DeclaredSource, what: str) -> OneSource:
    """The only source of a pipeline; raises `ConfigurationError` if ``what``, which needs one, has several."""
    if not isinstance(source, Sources):
        return source
    raise _refused(pipeline, f"{what} needs a single source", f"{len(source.inputs)} ({', '.join(source.inputs)})")


def require_kafka(pipeline: str, source: DeclaredSource, what: str) -> KafkaSource:
    """As `require_one`, for what needs a source in Kafka."""
    single = require_one(pipeline, source, what)
    if isinstance(single, KafkaSource):
        return single
    raise _refused(pipeline, f"{what} needs a source in Kafka", single.name)


def _refused(pipeline: str, why: str, reads: str) -> ConfigurationError:
    return ConfigurationError(
        f"{pipeline}: {why}, and this pipeline reads {reads}. Nothing was changed."
        f" `epochline ledger {pipeline}` shows what the ledger has."
    )
