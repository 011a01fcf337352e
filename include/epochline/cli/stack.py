"""`epochline up`, `down` and `status`: the embedded stack."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from epochline.errors import EpochlineError
from epochline.local.status import StackStatus, State

NOT_HEALTHY = 3

_STYLES = {State.RUNNING: "green", State.UNREADY: "yellow", State.CRASHED: "red", State.STOPPED: "dim"}


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)


def up(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="Which of postgres, kafka, spark, airflow; all if not given."),
    ] = None,
    spark_cluster: Annotated[
        bool,
        typer.Option("--spark-cluster", help="Run Spark's tasks on a master and two workers, until `epochline down`."),
    ] = False,
) -> None:
    """Start PostgreSQL, Kafka, Spark and Airflow, and wait until they are ready. A repeat repairs what crashed.

    Also creates the ledger, and the target tables of every declared pipeline. All data is in $EPOCHLINE_HOME, by
    default .epochline in the checkout. Exit code 0: the parts are ready; 1: one is not, the message says why; 2: wrong
    use.
    """
    from epochline.local.stack import PARTS, Stack

    stack = Stack()
    stack.up(parts or PARTS, report=typer.echo, spark_cluster=spark_cluster)
    if not parts or {"postgres", "airflow"} & set(parts):
        _create_targets()
    if not parts or "airflow" in parts:
        typer.echo(f"Airflow is at {stack.airflow.url}, user admin, password in {stack.airflow.password_file}")


def _create_targets() -> None:
    """Create missing target tables. An invalid declaration is only a warning: the stack is ready all the same."""
    from epochline.cli.migrate import create_declared

    try:
        create_declared(typer.echo)
    except EpochlineError as error:
        typer.echo(f"warning: the target tables were not made: {' '.join(str(error).split())}", err=True)


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete all data, logs and passwords.")] = False,
) -> None:
    """Stop what `up` started, and nothing else. Data stays unless --wipe is given.

    Exit code 0: nothing of this stack runs; 1: a part could not be stopped.
    """
    from epochline.local.stack import Stack

    Stack().down(wipe=wipe, report=typer.echo)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs; without passwords.")] = False,
) -> None:
    """Show the parts of the stack: health, version, address, and the files that hold passwords.

    Exit code 0: every part runs and answers; 3: a part does not.
    """
    from epochline.local.stack import Stack

    answer = Stack().status()
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
    else:
        _show(answer)
    if not answer.healthy:
        raise typer.Exit(NOT_HEALTHY)


def _show(answer: StackStatus) -> None:
    addresses = {
        "postgres": answer.postgres.dsn,
        "kafka": answer.kafka.bootstrap_servers,
        "spark": " on ".join(filter(None, (answer.spark.address, answer.spark.master))),
        "airflow": answer.airflow.url,
    }
    table = Table("part", "state", "version", "address", "pid", box=None, pad_edge=False)
    for name, part in answer.parts.items():
        pids = " ".join(str(pid) for pid in part.pids.values() if pid is not None)
        state = f"[{_STYLES[part.state]}]{part.state}[/]"
        table.add_row(name, state, part.version, addresses[name] or "-", pids or "-")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for name, part in answer.parts.items():
        if part.detail:
            console.print(f"{name}: {part.detail}", markup=False)
            console.print(f"  logs: {', '.join(str(log) for log in part.logs)}", markup=False)
    console.print(f"home: {answer.home}", markup=False)
    console.print(f"passwords: {answer.secrets_file} (all), {answer.airflow.password_file} (Airflow)", markup=False)
    console.print(
        f"psql: PGSERVICEFILE={answer.postgres.service_file} PGPASSFILE={answer.postgres.password_file} "
        "psql service=epochline",
        markup=False,
    )
