"""`epochline doctor`: check an installation part by part, and name what mends each part."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict

import typer

from epochline.cli import airflow_settings, installation, machine, printing, reached
from epochline.cli.installation import Check
from epochline.cli.options import AsJson
from epochline.cli.standing import Servers

TO_BE_MENDED = 1

_STYLES = {"ok": "green", "warning": "yellow", "wrong": "red", "not_asked": "dim"}


def doctor(as_json: AsJson = False) -> None:
    """Check the installation: packages, Java, declarations, disks, clocks, PostgreSQL, Kafka, Airflow. Changes nothing.

    Prints a line for each check, and what mends it: a command, a statement or a setting. A check that an earlier
    failure prevents is not asked. Waits for a server for 15 seconds at most, and for an Airflow that keeps connections
    for a minute. Prints no password. --json prints one object: whether the installation is healthy, and each check with
    its keys check, subject, outcome (ok, warning, wrong or not_asked), said and mend.

    Exit code 0: nothing is wrong, but there may be warnings; 1: something has to be mended; 2: wrong use.
    """
    checks = []
    for check in _checks():
        checks.append(check)
        if not as_json:
            _show(check)
    wrong = sum(check.outcome == "wrong" for check in checks)
    if as_json:
        printing.say(printing.as_json({"healthy": not wrong, "checks": [asdict(check) for check in checks]}))
    else:
        printing.say(f"to be mended: {wrong}" if wrong else "nothing is wrong")
    if wrong:
        raise typer.Exit(TO_BE_MENDED)


def _show(check: Check) -> None:
    from rich.text import Text

    word, subject = check.outcome.replace("_", " "), f" {check.subject}" if check.subject else ""
    said = check.said
    if check.mend is not None:
        said += f"{'' if said.endswith('.') else '.'} To mend it: {check.mend}"
    printing.console().print(Text.assemble((f"{word:<10}", _STYLES[check.outcome]), f"{check.check}{subject}: {said}"))


def _checks() -> Iterator[Check]:
    """Every check, each after those that it depends on."""
    declared, declarations = installation.declarations()
    pipelines = declared.pipelines
    yield from installation.installed(pipelines)
    yield from installation.programs(installation.spark_connections(pipelines))
    yield from declarations
    yield installation.settings()
    yield from machine.disks(pipelines)
    found = [installation.connection(kind, name) for kind, name in installation.named(pipelines)]
    yield from found
    with ExitStack() as block:
        asked = reached.Asked(servers=Servers(block), usable={one.subject for one in found if one.outcome == "ok"})
        for name in installation.databases(pipelines):
            yield from asked.database(name, [one for one in pipelines.values() if one.postgres_connection == name])
        for name in installation.clusters(pipelines):
            yield from asked.kafka(name, list(pipelines.values()))
        for pipeline in pipelines.values():
            yield asked.source(pipeline)
            yield from asked.sinks(pipeline)
    yield installation.entries()
    yield from airflow_settings.airflow_settings()
    yield from airflow_settings.airflow()
