"""`epochline up`, `down` and `status`: the embedded stack."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from epochline.cli import database, printing
from epochline.cli.airflow_access import URL, airflow_access, airflow_api
from epochline.config import discovery
from epochline.declare.pipeline import Pipeline
from epochline.errors import ConfigurationError, EpochlineError, LedgerError, StackError, VersionError, one_line
from epochline.local.stack import PARTS, Stack, StackStatus, State
from epochline.protocol.standing import StandingWord, standing_of_pipeline

NOT_HEALTHY = 3

_STYLES = {State.RUNNING: "green", State.UNREADY: "yellow", State.CRASHED: "red", State.STOPPED: "dim"}


def up(
    parts: Annotated[
        list[str] | None, typer.Argument(help="Which of postgres, kafka, spark, airflow; all if not given.")
    ] = None,
    spark_cluster: Annotated[
        bool,
        typer.Option("--spark-cluster", help="Run Spark's tasks on a master and two workers, until `epochline down`."),
    ] = False,
) -> None:
    """Start PostgreSQL, Kafka, Spark and Airflow, and wait until they are ready. A repeat restarts crashed parts.

    Also creates the ledger and the target tables of every declared pipeline. Names broken declarations. All data is in
    $EPOCHLINE_HOME, by default .epochline in the checkout or, if the package is installed, in the project's folder.
    Exit code 0: the parts are ready, even if a declaration is broken; 1: a part is not ready, see the message; 2: wrong
    use.
    """
    stack = Stack()
    stack.up(parts or PARTS, report=typer.echo, spark_cluster=spark_cluster)
    if not parts or {"postgres", "airflow"} & set(parts):
        from epochline.cli.declarations import create_declared

        try:
            create_declared(typer.echo)
        except EpochlineError as error:  # an invalid declaration is only a warning: the stack is ready all the same
            typer.echo(f"warning: the target tables were not made: {one_line(error)}", err=True)
    else:
        _name_broken()
    if not parts or "airflow" in parts:
        typer.echo(f"Airflow is at {stack.airflow.url}, user admin, password in {stack.airflow.password_file}")


def _name_broken() -> Mapping[str, Pipeline]:
    """Name broken declarations, or the missing folder, on standard error; return the declared pipelines."""
    try:
        declared = discovery.look()
    except ConfigurationError as error:
        printing.progress(f"warning: {error}")
        return {}
    printing.broken(declared.broken)
    return declared.pipelines


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete all data, logs and passwords.")] = False,
) -> None:
    """Stop only the processes that `up` started. Data stays unless --wipe is given.

    Exit code 0: nothing of this stack runs; 1: a part could not be stopped.
    """
    Stack().down(wipe=wipe, report=typer.echo)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs; without passwords.")] = False,
) -> None:
    """Show the parts of the stack: health, version, address, and the files with passwords.

    Changes nothing. Also names the Airflow that `trigger`, `logs` and `list` ask, where each connection comes from,
    pipelines that need an operator, and broken declarations. Exit code 0: every part runs and answers, even if
    pipelines or declarations are named; 3: a part does not.
    """
    declared = _name_broken()
    answer, asks, found = Stack().status(), _airflow(), _connections(declared)
    if as_json:
        printing.say(printing.as_json({**answer.model_dump(mode="json"), "asks": asks, "connections": found}))
    else:
        show_status(answer)
        version = "" if asks["version"] is None else f", version {asks['version']}"
        whom = f": {asks['url']} (from {asks['from']}{version})" if asks["error"] is None else f" none: {asks['error']}"
        printing.say(f"trigger, logs and list ask{whom}")
        for name, place in found.items():
            printing.say(f"connection {name}: {place or 'not found; `epochline doctor` says why'}")
        commands = _name_standing(Stack().postgres.dsn()) if answer.postgres.state is State.RUNNING else []
        printing.say(f"next: {_way_on(answer, declared, commands)}")
    if not answer.healthy:
        raise typer.Exit(NOT_HEALTHY)


def _airflow() -> dict[str, str | None]:
    """The Airflow that commands ask, what names it, and its version or why it refuses; the stack's own is not asked."""
    asks: dict[str, str | None] = {"url": None, "from": "the embedded stack", "version": None, "error": None}
    try:
        access = airflow_access()
        asks |= {"url": access.url, "from": access.where}
        if not access.embedded:
            asks["version"] = airflow_api().version()
    except EpochlineError as error:
        asks |= {"from": URL if os.environ.get(URL) else asks["from"], "error": str(error)}
    return asks


def _connections(pipelines: Mapping[str, Pipeline]) -> dict[str, str | None]:
    """The place that has each connection that the pipelines name; None if it is not found, or its server is down."""
    from epochline.cli import connections, installation

    found: dict[str, str | None] = {}
    for _, name in installation.named(pipelines):
        found[name] = None
        with suppress(EpochlineError):
            found[name] = connections.look_up(name).place
    return found


def airflow(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The arguments of Airflow's program, such as `dags list`.")
    ] = None,
) -> None:
    """Run Airflow's command line on the stack's Airflow, with its settings and connections.

    `epochline airflow -- --help` shows Airflow's help. Exit code: that of Airflow; 1 also if the stack's PostgreSQL
    does not run, which has Airflow's tables.

    For example:

    epochline airflow dags list

    epochline airflow connections get epochline_kafka -o json
    """
    if url := os.environ.get(URL):
        raise StackError(
            f"{URL} names {url}, and Airflow's program works on its own host: run `airflow` there. `unset {URL}` for"
            " the embedded stack's."
        )
    stack = Stack()
    if stack.postgres.pid is None or not stack.airflow.folder.exists():
        raise StackError(f"no Airflow was started in {stack.home}, or its PostgreSQL is down; run `epochline up`.")
    command = stack.airflow.command(arguments or ["--help"])
    sys.stdout.flush()
    # Airflow takes over terminal, signals and exit code.
    os.execve(command[0], command, stack.airflow.whole_environment())  # noqa: S606 - no shell is wanted


def _way_on(answer: StackStatus, declared: Mapping[str, Pipeline], commands: Sequence[str]) -> str:
    """The command that goes on from what `status` shows."""
    if not answer.healthy:
        return "`epochline up`"
    for command in commands[:1]:
        return f"`epochline {command}`"
    if not declared:
        return "`epochline init NAME` writes a pipeline; `epochline examples list` names ready ones"
    return "`epochline list` says how far each pipeline is"


def _name_standing(dsn: str) -> Sequence[str]:
    """Say which pipelines of the stack's ledger stand, so that a healthy stack is not taken for healthy pipelines.

    Returns:
        The commands by which those go on that have one.
    """
    try:
        with database.session(dsn) as opened:
            rows = database.ask(opened, "standing", pipeline=None)
    except LedgerError as error:
        if isinstance(error, VersionError):
            typer.echo(f"ledger: {error}")
        return []
    standings = {row["pipeline"]: standing_of_pipeline(row) for row in rows}
    stand = {
        name: standing
        for name, standing in standings.items()
        if standing.word.stands and standing.word is not StandingWord.DROPPED
    }
    if stand:
        named = ", ".join(f"{name} ({standing.word})" for name, standing in stand.items())
        typer.echo(f"pipelines that stand: {named}; `epochline list` says why")
    return [standing.command for standing in stand.values() if standing.command]


def show_status(answer: StackStatus) -> None:
    """Print a line for each part, then addresses and files whole: a terminal may be too narrow for them in a table."""
    addresses = {
        "postgres": answer.postgres.dsn,
        "kafka": answer.kafka.bootstrap_servers,
        "spark": " on ".join(filter(None, (answer.spark.address, answer.spark.master))),
        "airflow": answer.airflow.url,
    }
    printing.table(
        ("part", "state", "version", "port", "pid"),
        [
            (
                name, Text(part.state, style=_STYLES[part.state]), part.version, part.port,
                " ".join(str(pid) for pid in part.pids.values() if pid is not None) or None,
            )
            for name, part in answer.parts.items()
        ],
        least=("pid", "version"),
    )  # fmt: skip
    for name, address in addresses.items():
        if address:
            printing.say(f"{name}: {address}")
    for name, part in answer.parts.items():
        if part.detail:
            printing.say(f"{name}: {part.detail}")
            printing.say(f"  logs: {', '.join(map(str, part.logs))}")
    printing.say(f"declarations: {answer.airflow.dags_folder}")
    printing.say(f"home: {answer.home}")
    printing.say(f"passwords: {answer.secrets_file} (all), {answer.airflow.password_file} (Airflow)")
    files = f"PGSERVICEFILE={answer.postgres.service_file} PGPASSFILE={answer.postgres.password_file}"
    printing.say(f"psql: {files} psql service=epochline")
