"""One step of an epoch in a process of its own, so that a test can kill or stop it there; see `sinks_world`."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ledger, self.source = watched(self.ledger), watched_source(self.source)


def take_step(kind: type[Watched] = Watched) -> None:
    """Take the step that the environment names, of the pipeline that it holds."""
    plain = in_process(os.environ["DSN"], os.environ["BOOTSTRAP"], Pipeline.from_stored(os.environ["PIPELINE"]))
    it = kind(plain.dsn, plain.pipeline, plain.source, plain.read, plain.kafka)
    it.run_prefix = os.environ.get("RUN") or f"process-{os.getpid()}"
    print(getattr(it, os.environ["STEP"])())
