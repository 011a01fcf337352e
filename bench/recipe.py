"""What users of Structured Streaming write to take records from Kafka into a table.

``once`` is the recipe for exactly-once: ``foreachBatch`` writes by JDBC into a staging table, then one transaction
inserts the rows and the batch id. Without it, ``foreachBatch`` appends by JDBC, and a crash repeats a batch.

``python -m bench.recipe FILE`` runs it in a process of its own, as a user would; FILE is what `Recipe.stored` wrote.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import DataFrame, SparkSession

from epochline.local.jars import JarSet
from epochline.local.spark_home import spark_home

JARS = Path(__file__).parent / "ivy" / "spark.xml"
"""Spark's own Kafka source and Avro reader, and PostgreSQL's JDBC driver, which no part of Epochline uses."""


def jars() -> str:
    """The jars, as ``spark.jars`` takes them."""
    return ",".join(map(str, JarSet(JARS).ensure(print)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One stream from a topic into a table; its names of tables are not quoted.

    ``{table}`` in ``prepare`` and ``statements`` is the table's name.
    """

    dsn: str = field(repr=False)
    kafka: Mapping[str, str]
    topic: str
    table: str
    columns: Mapping[str, str]
    """Columns of the table, with PostgreSQL's types."""
    schema: str = ""
    """The columns of records in JSON, with Spark's types."""
    checkpoint: str
    once: bool = True
    record: str | None = None
    """Spark's expression for a struct of a record's columns; by default of JSON with the schema."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further staged columns by name, as Spark's expressions over the columns of Kafka's source."""
    query: str | None = None
    """Spark's query over ``{records}``, whose result is staged."""
    watermark: tuple[str, str] | None = None
    """A column and a delay. With it the query runs over the stream and Spark keeps its state, else over each batch."""
    staged: Mapping[str, str] | None = None
    """Staged columns with PostgreSQL's types; by default those of the table."""
    prepare: str = ""
    """What is done to the tables before the first record."""
    statements: Sequence[str] = ("INSERT INTO {table} SELECT * FROM {table}_staging",)
    """What takes staged rows into the table, in the transaction of the batch id."""

    def make(self) -> None:
        columns, staged = (
            ", ".join(f"{name} {kind}" for name, kind in of.items())
            for of in (self.columns, self.staged or self.columns)
        )
        self._sql(f"CREATE TABLE {self.table} ({columns})")
        if self.once:
            self._sql(
                f"CREATE UNLOGGED TABLE {self.table}_staging ({staged});"
                f"CREATE TABLE {self.table}_batches (batch bigint PRIMARY KEY);{self.prepare.format(table=self.table)}"
            )

    def start(self, spark: SparkSession, **trigger: Any) -> Any:
        """Start the stream, or go on from its checkpoint; returns the query."""
        stream = spark.readStream.format("kafka").options(**self._source).option("startingOffsets", "earliest")
        records = self.parsed(stream.load())
        if self.watermark:
            records = self._queried(records.withWatermark(*self.watermark))
        writer = records.writeStream.foreachBatch(self._insert)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**trigger).start()

    def take(self, spark: SparkSession) -> float:
        """Take all records that are there; returns the batches' seconds, without the start of the query."""
        query = self.start(spark, availableNow=True)
        query.awaitTermination()
        return float(sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress)) / 1000

    def read(self, spark: SparkSession, since: Mapping[str, int], until: Mapping[str, int]) -> DataFrame:
        """Parsed records between two offsets of each partition."""
        starts, ends = (json.dumps({self.topic: dict(offsets)}) for offsets in (since, until))
        reader = spark.read.format("kafka").options(**self._source)
        return self.parsed(reader.option("startingOffsets", starts).option("endingOffsets", ends).load())

    def parsed(self, frame: DataFrame) -> DataFrame:
        """The columns of a frame of Kafka's source."""
        record = self.record or f"from_json(CAST(value AS STRING), '{self.schema}')"
        more = (f"{expression} AS {name}" for name, expression in self.more.items())
        return frame.selectExpr(f"{record} AS r", *more).select("r.*", *self.more)

    def stored(self, path: Path) -> Path:
        """Write what a process of its own needs."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def _source(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka["bootstrap.servers"], "subscribe": self.topic,
            "kafka.isolation.level": "read_committed",
        }  # fmt: skip

    def _queried(self, records: DataFrame) -> DataFrame:
        return records.sparkSession.sql(self.query or "", records=records)

    def _insert(self, batch: DataFrame, batch_id: int) -> None:
        if self.query and not self.watermark:
            batch = self._queried(batch)
        if not self.once:
            batch.write.format("jdbc").options(**self._jdbc, dbtable=self.table).mode("append").save()
            return
        options = self._jdbc | {"dbtable": f"{self.table}_staging", "truncate": "true"}
        batch.write.format("jdbc").options(**options).mode("overwrite").save()
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {self.table}_batches VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,))  # noqa: S608
            if cursor.rowcount:
                for statement in self.statements:
                    cursor.execute(statement.format(table=self.table))

    @property
    def _jdbc(self) -> dict[str, str]:
        to = psycopg2.extensions.parse_dsn(self.dsn)
        # PostgreSQL then takes a text for a column of jsonb, numeric, uuid and the like.
        settings = "reWriteBatchedInserts=true&stringtype=unspecified"
        return {
            "url": f"jdbc:postgresql://{to['host']}:{to['port']}/{to['dbname']}?{settings}",
            "user": to["user"], "password": to["password"], "driver": "org.postgresql.Driver", "batchsize": "10000",
        }  # fmt: skip

    def _sql(self, statement: str) -> None:
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement)


def main() -> None:
    """Take all records that are there, or new ones until this process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.recipe", description=__doc__)
    parser.add_argument("file", type=Path, help="what Recipe.stored wrote")
    parser.add_argument("--every", metavar="INTERVAL", help="the trigger's interval; without it, ends with the records")
    given = parser.parse_args()
    os.environ |= {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    recipe = Recipe(**json.loads(given.file.read_text()))
    settings: dict[str, Any] = {"spark.jars": jars(), "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = SparkSession.builder.master("local[2]").appName("recipe").config(map=settings).getOrCreate()
    trigger = {"processingTime": given.every} if given.every else {"availableNow": True}
    recipe.start(spark, **trigger).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
