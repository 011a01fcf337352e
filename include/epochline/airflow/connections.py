"""What the use cases need, made from Airflow's connections and context: a ledger, a Kafka, a run, an action.

Every task of a pipeline imports this module. Airflow's operator that starts DAG runs imports Airflow's database models,
which takes half a second, so this module must not import that operator.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection as AirflowConnection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from epochline.adapters import Adapters
from epochline.airflow.lineage import note_address
from epochline.config.connections import SPARK_CONNECT, Connection, spark_writers
from epochline.config.extras import naming_extras
from epochline.declare.pipeline import Pipeline
from epochline.errors import ActionRefusedError, ConfigurationError, EpochlineError, one_line
from epochline.protocol.epoch import Interval, Run
from epochline.protocol.failures import RecordedError

if TYPE_CHECKING:
    from epochline.coordinator import Plan
    from epochline.operations import Subject

log = logging.getLogger(__name__)

ACTION = "action"
"""Key of a run's conf that names the operator's action whose epoch the run is."""

SAID = "said"
"""Key of the XCom in which the task of an action leaves what it said, for the page that started the run."""


@contextmanager
def epochline_errors() -> Iterator[None]:
    """Turn our errors into Airflow's, so that Airflow retries a task only if a retry helps.

    A failure is logged in one line first; Airflow's traceback comes below. An error of ours says all that there is to
    say, so its traceback is only shown if it has a cause.
    """
    try:
        with naming_extras():
            yield
    except EpochlineError as error:
        message = f"{type(error).__name__}: {error}"
        log.error("%s", one_line(message))
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(message) from (error if error.__cause__ is not None else None)
    except (AirflowRescheduleException, AirflowSkipException):
        raise
    except AirflowException as error:
        log.error("%s", one_line(error))
        raise
    except (Exception, AirflowTaskTimeout) as error:
        log.error("%s", RecordedError.of(error))
        raise


def run_of(context: Mapping[str, Any]) -> Run:
    """The DAG run of a task. Try numbers and dates decide nothing (INV-8)."""
    return Run(dag_id=context["dag_run"].dag_id, run_id=context["dag_run"].run_id, host=socket.gethostname())


def interval_of(context: Mapping[str, Any]) -> Interval | None:
    """The data interval of a backfill run; None for any other run, whose dates decide nothing (INV-8)."""
    dag_run = context["dag_run"]
    if dag_run.run_type != "backfill":
        return None
    start, until = dag_run.data_interval_start, dag_run.data_interval_end
    if start is None or until is None or start >= until:
        raise ConfigurationError(
            f"backfill run {dag_run.run_id} of {dag_run.dag_id} has no data interval ({start} to {until}), so"
            " there is nothing to read up to. Nothing was planned. Build the DAG with `epoch_dag`, or give your own DAG"
            " schedule=epoch_schedule(pipeline): its timetable gives runs an interval."
        )
    return Interval(start=start, until=until)


def _of_airflow(connection_id: str) -> AirflowConnection:
    try:
        connection: AirflowConnection = AirflowConnection.get(connection_id)
    except AirflowNotFoundException:
        raise ConfigurationError(
            f"Airflow has no connection {connection_id!r}. Add it: *Admin, Connections*, or `airflow connections add`."
        ) from None
    return connection


def _look_up(connection_id: str) -> Connection:
    connection = _of_airflow(connection_id)
    found = Connection(
        where=f"Airflow connection {connection_id!r}",
        host=connection.host or "",
        port=connection.port,
        schema=connection.schema or "",
        login=connection.login or "",
        password=connection.password or "",
        extra={str(key): str(value) for key, value in connection.extra_dejson.items()},
    )
    note_address(connection_id, found)
    return found


def note_sources(pipeline: Pipeline) -> None:
    """Look up where the sources are, for a task that does not read them, if the provider of lineage listens."""
    if "airflow.providers.openlineage.plugins.listener" in sys.modules:
        with suppress(Exception):
            for input_ in pipeline.inputs.values():
                if input_.source.connection is not None:
                    _look_up(input_.source.connection)


def adapters() -> Adapters:
    """What reaches the servers of Airflow's connections."""
    return Adapters(look_up=_look_up, application_name="epochline")


def postgres_dsn(connection_id: str) -> str:
    """The libpq URL of an Airflow connection, for a DAG file's own tasks. It holds the password, which may expire."""
    from epochline.config.logins import complete

    return complete(adapters().postgres_dsn(connection_id))


def spark_server(connection_id: str) -> str | None:
    """URL of the Spark Connect server, with its token; None for a connection by which spark-submit starts a driver."""
    if _of_airflow(connection_id).conn_type != SPARK_CONNECT:
        return None
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

    return SparkConnectHook(connection_id).get_connection_url()


def writers_of(pipeline: Pipeline) -> int | None:
    """How many sessions Spark will write with at once; None if neither connection nor declaration says."""
    connection = _of_airflow(pipeline.spark_connection)
    if connection.conn_type == SPARK_CONNECT:
        cores = connection.extra_dejson.get("cores")
        return None if cores is None else int(cores)
    return spark_writers(pipeline.spark_conf, connection.host or "")


def dag_of_action(name: str) -> str:
    """The id of the DAG that carries out an action."""
    return f"epochline_{name.replace('-', '_')}"


def planned_by_action(context: Mapping[str, Any], pipeline: Pipeline) -> Plan | None:
    """The plan of a run whose conf names an action; None for every other run. A wrong conf is refused."""
    conf = (context["dag_run"].conf or {}).get(ACTION)
    if conf is None:
        return None
    from epochline.operations import ACTIONS, EpochAction, Request

    action = ACTIONS.get(str(conf.get("name"))) if isinstance(conf, Mapping) else None
    if not isinstance(action, EpochAction):
        raise ActionRefusedError(f"{pipeline.name}: the run's conf names no action that is an epoch.")
    request = Request(actor=actor_of(context, conf.get("actor")), reason=str(conf.get("reason") or ""))
    parameters = action.parse(conf.get("parameters") or {})
    return action.plan(subject_of(pipeline), parameters, request, run_of(context), writers=writers_of(pipeline))


def subject_of(pipeline: Pipeline) -> Subject:
    """A declared pipeline with the ledger and the Kafka behind its connections."""
    from epochline.operations import Subject

    return Subject(
        name=pipeline.name, ledger=adapters().ledger(pipeline), declared=pipeline, source=adapters().offsets(pipeline)
    )


def actor_of(context: Mapping[str, Any], in_conf: object = None) -> str:
    """The user that triggered the run, from Airflow; else the actor in the run's conf; else the run itself.

    Airflow comes first because a conf can name any user.
    """
    run = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or in_conf or f"run {run.run_id} of {run.dag_id}")
