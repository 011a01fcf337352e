"""Runs the transform or the windows of a committed epoch again, for an audit. Stages nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from epochline.arrow.stage.again import EpochAgain, RowsAgain
from epochline.declare.state import StateTable
from epochline.declare.windowed_query import QueryWindows
from epochline.errors import ConfigurationError, DeclarationError
from epochline.protocol.staging import StagingTicket
from epochline.spark.failure import class_and_message, epochline_error_from
from epochline.spark.functions import pickle_by_value
from epochline.spark.part_rows import DIGEST, SinkRows, frame_of, parsed_rows, quoted
from epochline.spark.session import prepare
from epochline.spark.stage_frames import Keep, by_transform, by_windows, kept, staged_frame
from epochline.spark.state import StateReader, WindowReader
from epochline.spark.windowing import require_same_query

Reader = TypeVar("Reader", bound=StateReader)

_OTHER_PARTS = 3
"""Spark partitions of the second run, so that its records meet in another order."""

_OF = "destination"


class TransformAgain:
    """Runs epochs again in one session of Spark, which ``start`` gives when the first epoch needs it, with ``conf``.

    Each epoch runs twice, the second time with its records in another order. Only rows that both runs make can be
    compared with those of a third run.
    """

    def __init__(self, start: Callable[[], SparkSession], conf: Mapping[str, str]) -> None:
        self._start, self._conf = start, conf
        self._spark: SparkSession | None = None

    def __call__(self, epoch: EpochAgain) -> RowsAgain:
        """The rows of the wanted destinations.

        Raises:
            ConfigurationError: settings of the session may give other rows.
            DeclarationError: a result of the transform is unfit, or the two runs made different rows.
            EpochlineError: Spark does not start, or the transform raises.
        """
        declared = epoch.pipeline
        if _of_sql(declared.spark_conf) != _of_sql(self._conf):
            raise ConfigurationError("its spark_conf has other settings spark.sql.… than the newest epoch's")
        if self._spark is None:
            self._spark = self._start()
        records = sum(batch.num_rows for batches in epoch.parsed.values() for batch in batches)
        prepare(self._spark, declared.spark_conf, records)
        for reference in filter(None, [declared.transform, *(state.keys for state in declared.state)]):
            pickle_by_value(reference)
        try:
            with kept() as keep:
                made = dict(_made(self._spark, epoch, keep))
            with kept() as keep:
                other = _digests(self._spark, _in_other_order(epoch), keep)
        except Exception as error:
            ours = epochline_error_from(error)
            # A message of another error may hold values.
            raise ours or DeclarationError(f"today's transform fails: {class_and_message(error)[0]}") from error
        different = sorted(sink for sink, (_, digest) in made.items() if digest != other[sink])
        if different:
            raise DeclarationError(
                f"two runs with the records in another order gave different rows of {', '.join(different)}, so nothing"
                " tells which are right"
            )
        return {sink: rows for sink, (rows, _) in made.items()}


def _of_sql(conf: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in conf.items() if name.startswith("spark.sql.")}


def _made(
    spark: SparkSession, epoch: EpochAgain, keep: Keep
) -> Iterator[tuple[str, tuple[Sequence[pa.RecordBatch], int]]]:
    """By destination its rows, and their digest."""
    spec, staged = epoch.pipeline.spec, {table.sink: table for table in epoch.tables}
    sinks = {sink.table: sink for sink in spec.sinks}
    for name, frame in _frames(spark, epoch, keep):
        rows, collected = SinkRows(spec, sinks[name], staged[name]), frame.toArrow()
        batches = [rows.process(batch) for batch in collected.to_batches()] + [rows.finish()]
        yield name, ([batch for by_sink in batches for batch in by_sink.values()], _digest(collected))


def _digests(spark: SparkSession, epoch: EpochAgain, keep: Keep) -> Mapping[str, int]:
    """The digest of each destination's rows, by one job."""
    frames = dict(_frames(spark, epoch, keep, _OTHER_PARTS))
    marked = [frame.select(F.lit(number).alias(_OF), DIGEST) for number, frame in enumerate(frames.values())]
    rows = reduce(DataFrame.union, marked).toArrow()
    return {name: _digest(rows.filter(pc.equal(rows.column(_OF), number))) for number, name in enumerate(frames)}


def _digest(rows: pa.Table) -> int:
    hashes = rows.column(DIGEST).to_numpy().view(np.uint64)
    return (int(hashes.sum(dtype=np.uint64)) + rows.num_rows) % 2**64


def _frames(
    spark: SparkSession, epoch: EpochAgain, keep: Keep, parts: int | None = None
) -> Iterator[tuple[str, DataFrame]]:
    """The staging rows of the wanted destinations. Their digest leaves columns of floating-point numbers out."""
    declared, spec = epoch.pipeline, epoch.pipeline.spec
    rows: Mapping[str, DataFrame] = {
        name: keep(parsed_rows(frame_of(spark, declared.specs[name], epoch.parsed.get(name, ())), declared.specs[name]))
        for name in declared.inputs
    }
    if parts is not None:
        rows = {name: frame.repartition(parts) for name, frame in rows.items()}
    windows = declared.windowing
    if windows is None:
        frames = by_transform(declared, rows, lambda state: _reader(epoch, StateReader, state), keep)
    else:
        if isinstance(windows, QueryWindows):
            require_same_query(rows[""], windows)
        reader = _reader(epoch, WindowReader, windows.open_windows(declared.sinks), lateness=windows.lateness)
        frames, _ = by_windows(declared, windows, rows[""], reader, epoch.before, epoch.after, keep)
    staged = {table.sink: table for table in epoch.tables}
    for sink in spec.sinks:
        if sink.table in epoch.wanted:
            frame = staged_frame(sink, staged[sink.table], frames[sink.table])
            left_out = {DIGEST, *epoch.inexact.get(sink.table, ())}
            exact = [F.col(quoted(name)) for name in frame.columns if name not in left_out]
            yield sink.table, frame.withColumn(DIGEST, F.xxhash64(*exact) if exact else F.lit(0).cast("bigint"))


def _reader(epoch: EpochAgain, kind: type[Reader], state: StateTable, **more: object) -> Reader:
    ticket = StagingTicket(
        pipeline=epoch.pipeline.name, epoch_id=epoch.epoch_id, attempt=0, attempt_id=0, application_name="", tables=()
    )
    return replace(kind.of(ticket, state, "", **more), table=epoch.states[state.table], here=epoch.session)


def _in_other_order(epoch: EpochAgain) -> EpochAgain:
    def backwards(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return [batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64())) for batch in reversed(batches)]

    return replace(epoch, parsed={name: backwards(batches) for name, batches in epoch.parsed.items()})
