"""Real Spark reads a source of a user's own, whose class only the driver has, and whose processes are killed (X15)."""

from pathlib import Path

import pytest

from epochline import CustomSource, Pipeline, PostgresTable, Text
from epochline.sources.positions import SourcePositions
from epochline.spark.credentials import JobCredentials
from tests.integration.guarantee import broken
from tests.integration.spark.conftest import Runs, Servers


class OwnRuns(Runs):
    """Runs of a pipeline that reads no Kafka."""

    def __init__(self, servers: Servers, source: CustomSource) -> None:
        pipeline = Pipeline(
            name=servers.name, source=source, parse=Text(),
            sinks=[PostgresTable(table="numbers", columns={"value": "text"})],
        )  # fmt: skip
        super().__init__(servers, pipeline)
        self.source = SourcePositions(source.spec)
        self.credentials = JobCredentials(dsn=servers.database.dsn, kafka={})

    def assert_whole(self, numbers: int) -> None:
        found = self.database.query("SELECT value::int FROM numbers ORDER BY 1")
        assert [one for (one,) in found] == list(range(1, numbers + 1))
        assert broken(self.database.query, self.name, "numbers") == {}


def test_a_worker_that_is_killed_between_emitting_and_remembering_doubles_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    """X15, E8: the position lies in the ledger. Three epochs, and the second one's job is killed while it reads."""
    source = CustomSource(
        source="scripted_source:ScriptedSource", options={"folder": str(tmp_path)}, label="numbers",
        positions="sparse",
    )  # fmt: skip
    runs = OwnRuns(servers, source)

    def grow(numbers: int) -> None:
        (tmp_path / "positions").write_text("\n".join(str(one) for one in range(numbers)))
        (tmp_path / "end").write_text(str(numbers))

    grow(10)
    runs.epoch()
    grow(25)
    (tmp_path / "killed").write_text("3")  # every try that Spark gives a task
    planned, who = runs.planned()
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        runs.staged(planned, who)
    assert (tmp_path / "killed").read_text() == "0"
    assert runs.database.query("SELECT count(*) FROM numbers") == [(10,)]
    grow(40)
    runs.committed(planned, who)
    runs.epoch()

    runs.assert_whole(40)
