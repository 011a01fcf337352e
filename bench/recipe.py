"""What users of Structured Streaming write to take JSON records from Kafka into a table.

``once`` is the recipe for exactly-once: ``foreachBatch`` writes by JDBC into a staging table, then one transaction
inserts the rows and the batch id. Without it, ``foreachBatch`` appends by JDBC, and a crash repeats a batch.

``python -m bench.recipe FILE`` runs it in a process of its own, as a user would; FILE is what `Recipe.stored` wrote.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from epochline.local.jars import JarSet
from epochline.local.spark_home import spark_home

JARS = Path(__file__).parent / "ivy" / "spark.xml"
"""Spark's own Kafka source and PostgreSQL's JDBC driver, which no part of Epochline uses."""


def jars() -> str:
    """The jars, as ``spark.jars`` takes them."""
    return ",".join(map(str, JarSet(JARS).ensure(print)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One stream from a topic into a table; its names of tables are not quoted."""

    dsn: str = field(repr=False)
    kafka: Mapping[str, str]
    topic: str
    table: str
    columns: Mapping[str, str]
    """Columns of the records and of the table, with PostgreSQL's types."""
    schema: str
    """The same columns with Spark's types."""
    checkpoint: str
    once: bool = True

    def make(self) -> None:
        """Make the tables."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        self._sql(f"CREATE TABLE {self.table} ({columns})")
        if self.once:
            self._sql(
                f"CREATE UNLOGGED TABLE {self.table}_staging ({columns});"
                f"CREATE TABLE {self.table}_batches (batch bigint PRIMARY KEY)"
            )

    def start(self, spark: SparkSession, **trigger: Any) -> Any:
        """Start the stream, or go on from its checkpoint; returns the query."""
        stream = spark.readStream.format("kafka").options(**self._source).option("startingOffsets", "earliest")
        writer = self.parsed(stream.load()).writeStream.foreachBatch(self._insert)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**trigger).start()

    def read(self, spark: SparkSession, since: Mapping[str, int], until: Mapping[str, int]) -> DataFrame:
        """Parsed records between two offsets of each partition."""
        starts, ends = (json.dumps({self.topic: dict(offsets)}) for offsets in (since, until))
        reader = spark.read.format("kafka").options(**self._source)
        return self.parsed(reader.option("startingOffsets", starts).option("endingOffsets", ends).load())

    def parsed(self, frame: DataFrame) -> DataFrame:
        """The columns of a frame of Kafka's source."""
        return frame.select(F.from_json(F.col("value").cast("string"), self.schema).alias("r")).select("r.*")

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

    def _insert(self, batch: DataFrame, batch_id: int) -> None:
        if not self.once:
            batch.write.format("jdbc").options(**self._jdbc, dbtable=self.table).mode("append").save()
            return
        options = self._jdbc | {"dbtable": f"{self.table}_staging", "truncate": "true"}
        batch.write.format("jdbc").options(**options).mode("overwrite").save()
        with closing(psycopg2.connect(self.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {self.table}_batches VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,))  # noqa: S608
            if cursor.rowcount:
                cursor.execute(f"INSERT INTO {self.table} SELECT * FROM {self.table}_staging")  # noqa: S608

    @property
    def _jdbc(self) -> dict[str, str]:
        to = psycopg2.extensions.parse_dsn(self.dsn)
        return {
            "url": f"jdbc:postgresql://{to['host']}:{to['port']}/{to['dbname']}?reWriteBatchedInserts=true",
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
