"""The declaration of a pipeline. Pure: constructing it validates it without any server.

The ledger keeps each declaration as JSON, by its hash (`Pipeline.stored`, `Pipeline.from_stored`). The Spark job reads
it from there, so that an attempt runs what was planned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, field_validator, model_validator

from epochline.declare.aggregation import Windowed
from epochline.declare.base import (
    Columns,
    DeclarationModel,
    Duration,
    check_function,
    check_plain_name,
    reading_back,
    refuse_names,
    repeated,
)
from epochline.declare.bounds import Bounds
from epochline.declare.columns import check_spark_holds
from epochline.declare.external import CustomSink, ExternalSink, Files
from epochline.declare.inputs import AnySource, Input, Sources
from epochline.declare.names import OUTBOX, consumer_group, split_table
from epochline.declare.parsers import ReadyMadeParser
from epochline.declare.settings import Settings
from epochline.declare.settings import profile as find_profile
from epochline.declare.source import CustomSource, FromGroup, KafkaSource
from epochline.declare.specs import Output, PipelineSpec
from epochline.declare.state import StateTable
from epochline.declare.table import PostgresTable, order_columns
from epochline.declare.topic import KafkaTopic, Outbox
from epochline.declare.version import VERSION
from epochline.declare.windowed_query import AnyWindows, WindowedQuery
from epochline.errors import DeclarationError, VersionError

# A declaration in a ledger may still have them. Nothing in a job depends on them.
_FORMER_FIELDS = frozenset({"retries", "retry_delay", "pre_commit_timeout"})

WITHOUT_INTERVALS = ("@once", "@continuous")
"""Airflow's schedules whose runs have no interval, and that say by themselves when a run starts."""

_KINDS = (("topic", KafkaTopic), ("path", Files), ("sink", CustomSink))


def _kind(sink: Any) -> str:
    """Tell the kind of a declared sink by its class, or by the field that only that kind has."""
    for field, kind in _KINDS:
        if isinstance(sink, kind) or (isinstance(sink, dict) and field in sink):
            return field
    return "table"


DeclaredSink = Annotated[
    Annotated[PostgresTable, Tag("table")]
    | Annotated[KafkaTopic, Tag("topic")]
    | Annotated[Files, Tag("path")]
    | Annotated[CustomSink, Tag("sink")],
    Discriminator(_kind),
]


class Pipeline(DeclarationModel):
    """A pipeline: a source, a parse, an optional transform, one or more sinks, and a schedule.

    Args:
        name: letters, digits, ``_``, ``-`` and ``.``; also the DAG's id.
        source: the topics to read, a `CustomSource`, or several `Sources`, each with its own parse.
        parse: a ready-made parser (`Bytes`, `Text`, `Json`, `Regex`, `Avro`), or ``module:function`` from Arrow record
            batch (``topic, partition, offset, timestamp, timestamp_type, key, value, headers``) to Arrow record batch,
            one row per input row, in order. Not for several `Sources`.
        record: columns and PostgreSQL types that the function ``parse`` returns (not for a ready-made parser).
        explode: name of a list column of ``parse``. Each element becomes a row, numbered ``_row``.
        transform: ``module:function`` from the parsed DataFrame to a DataFrame, or to a dict of DataFrames by table.
            With several `Sources` it gets a dict by input.
        sinks: target tables, and `KafkaTopic`, `Files` and `CustomSink`, which show an epoch after its commit.
        state: tables of keyed state. The transform gets the state of the records' keys as a second argument, and
            returns changed rows by table.
        windows: aggregates per window of event time, or a SQL query over windows, in place of a transform.
        bad_records: ``fail`` the epoch, or ``quarantine`` the record with its bytes and the reason.
        bounds: what an epoch's numbers may be.
        schedule: Airflow's schedule: a ``timedelta``, a cron expression, ``@continuous``, or None for manual runs. If
            it is left out, a profile or the settings file may set an interval.
        wake_on_data: also start a run when records wait, at the earliest this long after the last commit. Airflow needs
            a triggerer.
        postgres_connection, spark_connection: Airflow connection ids.
        writer_connection: id of the Spark job's connection. Its login is a member of ``epochline_writer`` and can only
            stage. By default the job uses ``postgres_connection``.
        settings: time-outs, pauses and restarts.
        profile: name of a profile, which sets what ``settings`` leave out.
        commit_statement_timeout, lock_timeout: time-outs of the commit's transaction.
        spark_conf: further Spark settings.
        tags: tags of the DAG.
    """

    name: str
    source: AnySource
    parse: str | ReadyMadeParser | None = None
    sinks: tuple[DeclaredSink, ...] = Field(min_length=1)
    record: Columns = Field(default_factory=dict)
    explode: str | None = None
    transform: str | None = None
    state: tuple[StateTable, ...] = ()
    windows: AnyWindows | None = None
    bad_records: Literal["fail", "quarantine"] = "fail"
    bounds: Bounds | None = None
    schedule: timedelta | str | None = None
    wake_on_data: Duration | None = None
    postgres_connection: str = "epochline_postgres"
    spark_connection: str = "spark_default"
    writer_connection: str | None = None
    settings: Settings = Settings()
    profile: str | None = None
    commit_statement_timeout: timedelta = timedelta(minutes=15)
    lock_timeout: timedelta = timedelta(seconds=30)
    spark_conf: dict[str, str] = Field(default_factory=dict)
    tags: tuple[str, ...] = ("epochline",)

    _dag_id = field_validator("name")(check_plain_name)
    _functions_exist = field_validator("parse", "transform")(check_function)

    @field_validator("schedule", mode="before")
    @classmethod
    def _duration_may_be_text(cls, schedule: Any) -> Any:
        if isinstance(schedule, str) and re.match(r"^-?P[\dT]", schedule):
            schedule = TypeAdapter(timedelta).validate_python(schedule)
        if isinstance(schedule, timedelta) and schedule <= timedelta(0):
            raise ValueError(f"an interval must be longer than zero, got {schedule}")
        return schedule

    @field_validator("settings")
    @classmethod
    def _schedule_is_the_interval(cls, settings: Settings) -> Settings:
        if settings.interval is not None:
            raise ValueError("interval: set schedule= in a declaration instead")
        return settings

    @field_validator("profile")
    @classmethod
    def _profile_exists(cls, name: str | None) -> str | None:
        return None if name is None else find_profile(name).name

    @field_validator("sinks", "state", mode="before")
    @classmethod
    def _one_table_may_stand_alone(cls, tables: Any) -> Any:
        return (tables,) if isinstance(tables, DeclarationModel) else tables

    @model_validator(mode="after")
    def _schedule_leaves_time_to_wake(self) -> Self:
        if self.wake_on_data is None:
            return self
        if isinstance(self.source, CustomSource):
            raise ValueError("wake_on_data: only records in Kafka start runs; give the pipeline a schedule")
        if isinstance(self.source, Sources):
            raise ValueError("wake_on_data: only one source starts runs; give the pipeline a schedule")
        if self.schedule in WITHOUT_INTERVALS:
            raise ValueError(f"wake_on_data: cannot be combined with schedule={self.schedule!r}; remove one of them")
        return self

    @model_validator(mode="after")
    def _record_and_sinks_agree(self) -> Self:
        if isinstance(self.source, Sources):
            self._check_several()
        elif self.parse is None:
            raise ValueError("parse: name a ready-made parser, or a function as module:function")
        else:
            self.inputs[""].check_record()
        for name, input_ in self.inputs.items():
            startup = input_.source.startup
            if isinstance(startup, FromGroup) and startup.group == self.consumer_group:
                raise ValueError(
                    f"source.{f'inputs.{name}.source.' if name else ''}startup: {self.consumer_group} is the group that"
                    " epochline mirrors this pipeline's heads to; name the group of the job that read the topic before"
                )
        if self.windows is not None:
            if self.transform is not None:
                raise ValueError("windows: cannot be combined with a transform; remove one of them")
            self.windows.check(self.parsed_columns, self.sinks)
        if repeated(".".join(split_table(sink.table)) for sink in self.tables):
            raise ValueError("sinks: a table is named twice" + (", or is also a state table" if self.states else ""))
        if repeated(sink.name for sink in self.post_commit_sinks):
            raise ValueError("sinks: a topic, a path or a custom sink is named twice")
        if repeated(topic for sink in self.topics for topic in sink.topics):
            raise ValueError("sinks: a topic is among the topics of two sinks; each sink needs topics of its own")
        if not reading_back.get():
            self._check_no_loop()
        if self.bounds is not None:
            self.bounds.check(self.targets)
        self._check_state()
        if self.is_transformed and not reading_back.get():
            for name, input_ in self.inputs.items():
                check_spark_holds(f"{f'source.inputs.{name}.' if name else ''}record", input_.parsed_columns)
            for state in self.states:
                check_spark_holds(f"state.{state}.columns", state.columns or {})
        for table in (*self.targets, *self.states):
            if split_table(table.table)[0] == OUTBOX:
                raise ValueError(f"sinks.{table}: the schema {OUTBOX} is reserved")
            self._check_rows(table, table.columns or (), "table")
            self._check_order(table)
        for sink in self.post_commit_sinks:
            self._check_rows(sink, sink.record if isinstance(sink, KafkaTopic) else sink.columns, "sink")
        return self

    def _check_no_loop(self) -> None:
        for sink in self.topics:
            for name in sink.sent_topics:
                for source in self.kafka_sources.values():
                    if source.connection == sink.connection and source.reads(name):
                        raise ValueError(
                            f"sinks.{sink}: the pipeline would read what it sends to {name}, without end: its source"
                            f" reads {source.described}; read other topics, or send to another one"
                        )

    def _check_several(self) -> None:
        for field in ("parse", "record", "explode"):
            if getattr(self, field):
                raise ValueError(f"{field}: each of several sources has its own; give it to the Input")
        if self.windows is not None:
            raise ValueError("windows: count the records of one source; declare a pipeline for each")
        if self.transform is None:
            raise ValueError("transform: name the function that makes rows of several sources")

    def _check_state(self) -> None:
        if self.state and self.transform is None:
            raise ValueError("state: only a transform reads and writes state; name one")
        for state in self.state:
            keyed = any(set(state.key) <= set(input_.parsed_columns) for input_ in self.inputs.values())
            if not keyed and state.keys is None:
                refuse_names(
                    f"state.{state}.key: the record has no",
                    [name for name in state.key if name not in self.parsed_columns],
                    "; name a function in keys that computes the keys from the records",
                )

    def _check_rows(
        self, sink: PostgresTable | KafkaTopic | ExternalSink, columns: Collection[str], kind: Literal["table", "sink"]
    ) -> None:
        if self.is_transformed:
            if sink.select is not None:
                raise ValueError(f"sinks.{sink}.select: not used with a transform, which returns each {kind}'s rows")
            return
        if sink.aggregated:
            raise ValueError(f"sinks.{sink}.aggregated: only rows of a transform are aggregated")
        if sink.select is None:
            refuse_names(
                f"sinks.{sink}.columns: the record has no",
                [name for name in columns if name not in self.parsed_columns],
                f"; it has {', '.join(self.parsed_columns)}. Rename them in parse, or give the sink a select",
            )

    def _check_order(self, sink: PostgresTable) -> None:
        order_columns(sink, self.parsed_columns)
        if self.is_transformed and sink.keep_unavailable:
            raise ValueError(f"sinks.{sink}.keep_unavailable: a transform's rows give every value; remove it")
        available = {*self.parsed_columns, *(sink.columns or ())} if self.is_transformed else {*self.parsed_columns}
        refuse_names(
            f"sinks.{sink}.order_by:",
            [name for name in sink.order_by if name not in available],
            " is a column neither of the record nor of the table, so its type is unknown; name it in columns"
            if self.is_transformed
            else " is not a column of the record",
        )

    @property
    def parsed_columns(self) -> dict[str, str]:
        """Columns and types of the parsed record; empty for several sources, whose records differ."""
        return {} if isinstance(self.source, Sources) else self.inputs[""].parsed_columns

    @property
    def inputs(self) -> dict[str, Input]:
        """Each source with its parse, by name; a single source has the name ``""``."""
        if isinstance(self.source, Sources):
            return self.source.inputs
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("source", "parse", "record", "explode")}
        return {"": Input.model_construct(None, **fields)}

    @property
    def kafka_sources(self) -> dict[str, KafkaSource]:
        """The sources in Kafka, by input."""
        return {name: input_.source for name, input_ in self.inputs.items() if isinstance(input_.source, KafkaSource)}

    @property
    def targets(self) -> tuple[PostgresTable, ...]:
        """The sinks that are tables."""
        return tuple(sink for sink in self.sinks if isinstance(sink, PostgresTable))

    @property
    def topics(self) -> tuple[KafkaTopic, ...]:
        """The sinks that are topics."""
        return tuple(sink for sink in self.sinks if isinstance(sink, KafkaTopic))

    @property
    def outboxes(self) -> tuple[Outbox, ...]:
        """The outboxes, one per topic."""
        return tuple(topic.outbox(self.name) for topic in self.topics)

    @property
    def external(self) -> tuple[ExternalSink, ...]:
        """The sinks that Spark writes directly, outside the database."""
        return tuple(sink for sink in self.sinks if isinstance(sink, ExternalSink))

    @property
    def post_commit_sinks(self) -> tuple[KafkaTopic | ExternalSink, ...]:
        """The topics and external sinks, which show an epoch after its commit."""
        return (*self.topics, *self.external)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every sink with the names that staging, manifests and receipts know it by."""
        return (
            *(Output(name=sink.table, staged_as=sink.table, shown_at_commit=True) for sink in self.targets),
            *(Output(name=box.topic.name, staged_as=box.table, shown_at_commit=False) for box in self.outboxes),
            *(Output(name=sink.name, staged_as=sink.name, shown_at_commit=False) for sink in self.external),
        )

    @property
    def tables(self) -> tuple[PostgresTable, ...]:
        """Every table that an epoch writes: the targets, the outboxes, then the state tables."""
        return (*self.targets, *self.outboxes, *self.states)

    @property
    def written(self) -> tuple[PostgresTable, ...]:
        """All destinations of an epoch's rows: every table, then the rows of the external sinks."""
        return (*self.tables, *(sink.rows for sink in self.external))

    @property
    def states(self) -> tuple[StateTable, ...]:
        """The declared state tables, then the table of open windows."""
        windows = self.windowing
        return self.state if windows is None else (*self.state, windows.open_windows(self.sinks))

    @property
    def windowing(self) -> Windowed | None:
        """The windows that an epoch computes; a query is compiled to windows with partial aggregates."""
        return self.windows.compiled(self.parsed_columns) if isinstance(self.windows, WindowedQuery) else self.windows

    @property
    def is_transformed(self) -> bool:
        """Whether a transform or windows make the rows, so that a row belongs to no single record."""
        return self.transform is not None or self.windows is not None

    @property
    def consumer_group(self) -> str:
        """The consumer group that mirrors the heads for monitors; no start is ever read from it."""
        return consumer_group(self.name)

    @property
    def specs(self) -> dict[str, PipelineSpec]:
        """The values that a Spark worker needs, by input."""
        windows = self.windows
        return {
            name: self._as(
                PipelineSpec,
                parse=input_.parse if isinstance(input_.parse, str) else input_.parse.spec,
                parsed_columns=input_.parsed_columns,
                explode=input_.explode,
                sinks=tuple(sink.spec for sink in self.written),
                external=tuple(sink.spec for sink in self.external),
                event_time=None if windows is None else windows.time.spec,
                required=() if windows is None else windows.required,
            )
            for name, input_ in self.inputs.items()
        }

    @property
    def spec(self) -> PipelineSpec:
        """The values that a Spark worker needs to make the sinks' rows, and to parse a single source."""
        return next(iter(self.specs.values()))

    def stored(self) -> str:
        """The declaration as canonical JSON, as the ledger keeps it and `declaration_hash` hashes it."""
        unset = {name for name in ("state", "windows", "wake_on_data", "bounds") if not getattr(self, name)}
        fields = self.model_dump(mode="json", exclude=unset)
        for name in ("epoch_files", "epoch_files_kept", "retention"):
            if fields["settings"][name] is None:  # left out for the same reason as the zero below
                del fields["settings"][name]
        for table in (*fields["sinks"], *fields.get("state", ())):
            # A zero is left out, so that the hashes of declarations in existing ledgers stay valid.
            if "before_images" in table and not table["before_images"]:
                del table["before_images"]
            # Files and JSON values have the declared order of columns, which JSON objects lose in the ledger.
            for held in (table, table.get("value", {})):
                if "table" not in table and isinstance(held, dict) and held.get("columns"):
                    held["columns"] = list(held["columns"].items())
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_stored(cls, body: str) -> Pipeline:
        """Read a declaration from the ledger, without looking up the functions that it names.

        Raises `VersionError` if another version wrote what this one does not know.
        """
        fields = {name: value for name, value in json.loads(body).items() if name not in _FORMER_FIELDS}
        reading = reading_back.set(True)
        try:
            return cls.model_validate_json(json.dumps(fields))
        except DeclarationError as error:
            raise VersionError(
                f"The ledger keeps a declaration that epochline {VERSION} cannot read: another version wrote it."
                f" Nothing was changed. Install that version for this process, and restart it. ({error})"
            ) from None
        finally:
            reading_back.reset(reading)

    @property
    def declaration_hash(self) -> str:
        """Sixteen hexadecimal digits that change with any field of the declaration."""
        return hashlib.sha256(self.stored().encode()).hexdigest()[:16]
