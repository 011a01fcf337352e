"""`epochline feed`: send the lines of a file to a topic."""

from __future__ import annotations

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

from epochline.errors import StackError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("feed")(feed_command)


def feed_command(
    file: Annotated[Path, typer.Argument(help="The file to send, one record per line; - is standard input.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic; created if missing.")],
    rate: Annotated[float | None, typer.Option(min=0.001, help="Records per second at most.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a topic that is created.")] = 4,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka's host:port; that of the connection or the running stack if not given.")
    ] = None,
) -> None:
    """Send the lines of FILE to a topic, evenly over its partitions, acknowledged by Kafka.

    A repeat sends the lines again. Exit code 0: Kafka has every line; 1: not all, the message says how many; 2: wrong
    use.
    """
    # Imported here: the other commands need no Kafka client.
    from epochline.kafka.feed import STANDARD_INPUT, check_readable, feed

    check_readable(file)
    size = file.stat().st_size if file != STANDARD_INPUT and file.is_file() else None
    with _bar() as bar:
        task = bar.add_task(f"{file} → {topic}", total=size)
        report = feed(
            bootstrap_servers or _stack_servers(),
            file,
            topic,
            partitions,
            rate,
            lambda read: bar.advance(task, read),
        )
    print_out = Console(soft_wrap=True).print
    if report.created:
        print_out(f"made topic {topic} with {len(report.records)} partitions", highlight=False)
    elif len(report.records) != partitions:
        print_out(
            f"topic {topic} exists with {len(report.records)} partitions, not {partitions}: used as it is",
            highlight=False,
        )
    for partition, records in report.records.items():
        print_out(f"partition {partition}: {records} records", highlight=False)
    print_out(
        f"{report.total} records, {report.payload} bytes in {report.seconds:.1f} s ({report.rate:.0f} records/s)",
        highlight=False,
    )


def _bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _stack_servers() -> str:
    from epochline.cli import connections
    from epochline.config.connections import KAFKA
    from epochline.local.stack import Stack

    if connections.in_environment(KAFKA) is None and Stack().kafka.pid is None:
        raise StackError(
            f"no Kafka runs in {Stack().home}; start it with `epochline up`, or name another one with"
            " --bootstrap-servers"
        )
    return connections.kafka_settings()["bootstrap.servers"]
