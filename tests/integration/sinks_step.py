"""One step of an epoch in a process of its own, so that a test can kill or stop it there; see `sinks_world`."""

from __future__ import annotations

import os
from importlib import import_module

from epochline import Pipeline
from epochline.failpoints import watched, watched_source
from tests.integration.in_process import InProcess
from tests.integration.sinks_world import in_process

for _name in (
    "confluent_kafka.admin", "epochline.kafka.markers", "epochline.kafka.preflight", "epochline.kafka.sending",
    "epochline.sinks.files", "epochline.sinks.topic", "fsspec.implementations.local", "pandas", "psycopg2.extras",
    "pyarrow.parquet", "sqlalchemy.dialects.postgresql.psycopg2", "encodings.idna",
):  # fmt: skip
    import_module(_name)  # What a step would import on its way is there once for all forked processes.


class Watched(InProcess):
    """With failpoints at the ports, where the composition roots of the product put them."""

    @property
    def ledger(self):  # type: ignore[no-untyped-def]
        return watched(super().ledger)


def take_step(kind: type[Watched] = Watched) -> None:
    """Take the step that the environment names, of the pipeline that it holds."""
    plain = in_process(os.environ["DSN"], os.environ["BOOTSTRAP"], Pipeline.from_stored(os.environ["PIPELINE"]))
    it = kind(**{**vars(plain), "source": watched_source(plain.source)})
    it.run_prefix = os.environ.get("RUN") or f"process-{os.getpid()}"
    print(getattr(it, os.environ["STEP"])())
