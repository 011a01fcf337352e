"""Functions of a declaration that break their contract, found without a record."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from epochline.arrow.stage.preview import RecordParser
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError


def breaches(pipeline: Pipeline) -> Iterator[str]:
    """How a parse or a select of the user breaks its contract: what every attempt would fail of.

    Its functions can be imported. A batch without records shows a breach, or a batch with one. A function that raises
    an error on a made-up record proves nothing.
    """
    if len(pipeline.inputs) > 1:
        return
    for values in ([], [b""]):
        columns = {
            "topic": pa.array(["" for _ in values], pa.string()),
            "partition": pa.array([0 for _ in values], pa.int32()),
            "offset": pa.array([0 for _ in values], pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
        try:
            RecordParser(pipeline).add(pa.record_batch(columns))
        except EpochlineError as error:
            yield f"{error}. Every attempt would fail of it"
            return
        except Exception:  # noqa: S112 - as the docstring says
            continue
