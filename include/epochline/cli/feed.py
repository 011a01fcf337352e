"""`epochline feed`: send the lines of a file to a topic."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from epochline.cli import connections, printing
from epochline.config.connections import KAFKA
from epochline.errors import StackError
from epochline.kafka.outgoing import Partitioner, json_record, plain_record
from epochline.local.stack import Stack
from epochline.protocol.quantities import counted


def feed(
    file: Annotated[Path, typer.Argument(help="The file to send, one record per line; - is standard input.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; created if missing.")],
    from_jsonl: Annotated[
        bool, typer.Option("--from-jsonl", help="Each line is a JSON object with key, value and headers of a record.")
    ] = False,
    partitioner: Annotated[
        Partitioner | None,
        typer.Option(
            help="What chooses the partition of a key: its hash as in Kafka's Java client (murmur2, the default), its"
            " CRC-32 as in librdkafka (consistent), or nothing (round-robin). Needs --from-jsonl."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Most records per second.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions, if the topic is created.")] = 4,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Host:port of a Kafka that asks for no login. If not given: the connection epochline_kafka, with its"
            " login and certificates, or the running stack."
        ),
    ] = None,
) -> None:
    """Send the lines of FILE to a topic, one record per line, acknowledged by Kafka.

    A line is the value of a record without a key, and the lines go to the partitions in turn. With --from-jsonl a line
    is a JSON object: key (a text or null), value (a text, any JSON value, or null for a tombstone), headers (an object
    or a list of pairs), partition, timestamp (milliseconds, or ISO 8601 with a zone); key_base64 and value_base64 are
    for bytes. Only a value is required. The error for an invalid line names its number; a file is checked before
    anything is sent, a stream line by line.

    A repeat sends the lines again. Exit code 0: Kafka has every line; 1: not all, the message says how many; 2: wrong
    use.

    For example:

    epochline feed access.log --topic access_log --partitions 4

    epochline feed people.jsonl --topic people --from-jsonl

    echo '{"key": "7", "value": null}' | epochline feed - -t people --from-jsonl
    """
    from epochline.kafka.feed import STANDARD_INPUT, check_readable
    from epochline.kafka.feed import feed as send

    if partitioner is not None and not from_jsonl:
        raise typer.BadParameter("--partitioner needs --from-jsonl: a plain line has no key")
    check_readable(file)
    size = file.stat().st_size if file != STANDARD_INPUT and file.is_file() else None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{file} → {topic}", total=size)
        report = send(
            bootstrap_servers or _kafka_settings(), file, topic, partitions, rate,
            lambda read: bar.advance(task, read),
            read=json_record if from_jsonl else plain_record, partitioner=partitioner or Partitioner.MURMUR2,
        )  # fmt: skip
    made = len(report.records)
    if report.created:
        printing.say(f"made topic {topic} with {made} partitions")
    elif made != partitions:
        printing.say(f"topic {topic} exists with {made} partitions, not {partitions}: used as it is")
    for partition, records in report.records.items():
        printing.say(f"partition {partition}: {counted(records, 'record')}")
    printing.say(
        f"{counted(report.total, 'record')}, {counted(report.payload, 'byte')} in {printing.duration(report.seconds)}"
        f" ({printing.number(round(report.rate))} records/s)"
    )


def _kafka_settings() -> dict[str, str]:
    if connections.in_environment(KAFKA) is None and Stack().kafka.pid is None:
        raise StackError(
            f"no Kafka runs in {Stack().home}; start it with `epochline up`, or name another one with"
            " --bootstrap-servers"
        )
    return connections.adapters().kafka_settings()
