"""Kafka's own clients as processes: a producer of counters that says what was acknowledged, and a console consumer."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from epochline.local.jars import KAFKA, JarSet, find_java
from epochline.local.part import java_environment

Process = AbstractContextManager[subprocess.Popen[bytes]]

_TOOLS = Path(__file__).with_name("kafka_tools.xml")


@contextmanager
def _running(folder: Path, name: str, heap: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A class of Kafka's tools. What it prints is in ``NAME.out``, what it complains of in ``NAME.err``."""
    class_path = ":".join(f"{JarSet(jars).ensure()[0].parent}/*" for jars in (_TOOLS, KAFKA))
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(
            [str(find_java()), f"-Xmx{heap}", "-cp", class_path, *arguments],
            stdout=out, stderr=err, env=java_environment(),
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def producing(folder: Path, bootstrap: str, topic: str, *, records: int, per_second: int) -> Process:
    """Kafka's VerifiableProducer: the numbers from 0 on, idempotent, acknowledged by every replica in sync.

    ``producer.out`` has a line of JSON for each record, ``producer_send_success`` with its place once it is
    acknowledged.
    """
    config = folder / "producer.properties"
    # It outlasts every fault: a record that it gives up may be in the log or not. By itself it tries once.
    config.write_text(
        "enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=1800000\nrequest.timeout.ms=5000\nlinger.ms=20\n"
    )
    return _running(
        folder, "producer", "256m", "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", bootstrap,
        "--topic", topic, "--max-messages", str(records), "--throughput", str(per_second), "--acks", "-1",
        "--command-config", str(config),
    )  # fmt: skip


def consuming(folder: Path, bootstrap: str, topic: str) -> Process:
    """Kafka's console consumer, read_committed, from the first record on: ``consumer.out`` has a line for each value."""
    return _running(
        folder, "consumer", "256m", "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap,
        "--topic", topic, "--from-beginning", "--isolation-level", "read_committed",
    )  # fmt: skip
