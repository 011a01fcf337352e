"""What `epochline doctor` finds in the settings of a database, and beside them, that delays an epoch or ends it."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochline.cli import connections
from epochline.cli.installation import Check
from epochline.cli.machine import clock_check, settings_of
from epochline.config.connections import SPARK_CONNECT, spark_writers
from epochline.declare.pipeline import Pipeline
from epochline.errors import EpochlineError
from epochline.protocol.quantities import counted, duration, size

if TYPE_CHECKING:
    from epochline.cli.database import Session

PREPARED_SECONDS = 600
"""A transaction that was prepared so long ago is taken for forgotten."""

OF_SETTINGS = (
    "durability", "time_limits", "sessions", "prepared_transactions", "publications", "replication_slots", "clock",
)  # fmt: skip
"""The checks of this module, in their order."""


def database_settings(opened: "Session", name: str, pipelines: Sequence[Pipeline], state: Any) -> Iterator[Check]:
    """What a database sets and holds beside an epoch; ``state`` is the answer of the statement ``session_state``."""
    from epochline.postgres.queries.statements import run

    about: dict[str, Any] = {"subject": name}
    off = [setting for setting in ("fsync", "full_page_writes") if state.settings[setting] == "off"]
    if off:
        said = f"{' and '.join(off)} off: after a crash of the machine, committed epochs may be gone or tables damaged"
        mend = " ".join(f"ALTER SYSTEM SET {setting} = on;" for setting in off) + " SELECT pg_reload_conf();"
        yield Check(check="durability", **about, outcome="warning", said=said, mend=mend)
    else:
        yield Check(check="durability", **about, said="a committed epoch survives a crash of the machine")
    # The ledger limits its own statements. A job's COPY has the login's limit, unless a login of its own writes.
    writes = any(one.writer_connection is None for one in pipelines)
    yield time_limits(name, pipelines, state, statements=writes)
    yield _sessions(name, pipelines, state, run(opened, "room_for_sessions").one())
    forgotten = run(opened, "prepared_transactions", seconds=PREPARED_SECONDS)
    if forgotten:
        ages = ", ".join(f"{one.gid} since {duration(one.seconds)}" for one in forgotten)
        said = f"prepared and never ended: {ages}. Epochs wait for their locks. COMMIT PREPARED keeps their changes"
        mend = " ".join(f"ROLLBACK PREPARED {one.gid};" for one in forgotten)
        yield Check(check="prepared_transactions", **about, outcome="warning", said=said, mend=mend)
    else:
        yield Check(check="prepared_transactions", **about, said="none was forgotten")
    shipping = run(opened, "publications_of_staging")
    if shipping:
        said = f"{', '.join(one.publication for one in shipping)}: ships each staged row before its target's, and a"
        said += " consumer such as Debezium gets new tables with each epoch"
        mend = " ".join(_without_staging(one) for one in shipping)
        yield Check(check="publications", **about, outcome="warning", said=said, mend=mend)
    else:
        yield Check(check="publications", **about, said="none ships what epochs stage")
    idle = run(opened, "idle_slots")
    if idle:
        kept = ", ".join(f"{one.slot} keeps {size(one.bytes)} of the write-ahead log" for one in idle)
        mend = " ".join(f"SELECT pg_drop_replication_slot({one.slot});" for one in idle)
        said = (
            f"without a reader: {kept}, and each epoch adds to it until the disk is full. Start the reader, or drop it"
        )
        yield Check(check="replication_slots", **about, outcome="warning", said=said, mend=mend)
    else:
        yield Check(check="replication_slots", **about, said="none is without a reader")
    yield clock_check(name, lambda: run(opened, "clock").scalar_one())


def _without_staging(publication: Any) -> str:
    name = publication.publication
    if publication.of_all_tables:
        return f"DROP PUBLICATION {name}; CREATE PUBLICATION {name} FOR TABLES IN SCHEMA public;"
    return f"ALTER PUBLICATION {name} DROP TABLES IN SCHEMA epochline_staging;"


def time_limits(name: str, pipelines: Sequence[Pipeline], state: Any, *, statements: bool) -> Check:
    """Whether the login's own limits end a transaction, or a statement of a job, before its epoch's time-out does."""
    longest = max((settings_of(one).timeout for one in pipelines), default=timedelta(hours=1))
    limits = {
        setting: timedelta(milliseconds=int(state.settings.get(setting, 0)))
        for setting in ("transaction_timeout", *(["statement_timeout"] if statements else []))
    }
    short = {setting: limit for setting, limit in limits.items() if timedelta() < limit < longest}
    if not short:
        return Check(check="time_limits", subject=name, said="none of this login ends an epoch")
    said = " and ".join(f"{setting} is {duration(limit.total_seconds())}" for setting, limit in short.items())
    said += f": the server ends a larger epoch there, though it may take {duration(longest.total_seconds())}"
    mend = " ".join(reset(setting, state) for setting in short)
    return Check(check="time_limits", subject=name, outcome="warning", said=said, mend=mend)


def _sessions(name: str, pipelines: Sequence[Pipeline], state: Any, room: Any) -> Check:
    """Whether each pipeline, and all at once, find the sessions that they need, as a plan asks."""
    needed = {one.name: writers + 2 for one in pipelines if (writers := _writers(one)) is not None}
    largest, together = max(needed.values(), default=0), sum(needed.values())
    free, limited = min(
        (left, kind) for kind in ("server", "login", "database") if (left := getattr(room, kind)) is not None
    )
    said = f"{counted(free, 'session')} free"
    if free >= together:
        return Check(check="sessions", subject=name, said=said)
    more = getattr(room, f"of_{limited}") + together - free
    mend = {
        "server": f"ALTER SYSTEM SET max_connections = {more}; and restart the server, or give Spark fewer cores",
        "login": f"ALTER ROLE {quoted(state.login)} CONNECTION LIMIT {more};",
        "database": f"ALTER DATABASE {quoted(state.database)} CONNECTION LIMIT {more};",
    }[limited]
    if free < largest:
        said += f", and an epoch of {max(needed, key=needed.__getitem__)} needs {largest}: its plan is refused"
        return Check(check="sessions", subject=name, outcome="wrong", said=said, mend=mend)
    said += f", and epochs of all {counted(len(needed), 'pipeline')} at once need {together}: plans are refused"
    return Check(check="sessions", subject=name, outcome="warning", said=said, mend=mend)


def _writers(pipeline: Pipeline) -> int | None:
    """How many sessions Spark writes with; None if nothing here says so."""
    try:
        at = connections.look_up(pipeline.spark_connection)
    except EpochlineError:
        return spark_writers(pipeline.spark_conf, "")
    if at.kind == SPARK_CONNECT:
        return int(at.extra["cores"]) if at.extra.get("cores", "").isdigit() else None
    return spark_writers(pipeline.spark_conf, at.host)


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def reset(setting: str, state: Any) -> str:
    """What takes a setting back where it was made. Such a statement needs a session that may write."""
    login, database = f"ALTER ROLE {quoted(state.login)}", f"DATABASE {quoted(state.database)}"
    statements = {
        "user": f"{login} RESET {setting};",
        "database": f"ALTER {database} RESET {setting};",
        "database user": f"{login} IN {database} RESET {setting};",
        "client": "unset PGOPTIONS",
    }
    statement = statements.get(state.decided_by[setting], f"ALTER SYSTEM RESET {setting}; SELECT pg_reload_conf();")
    writing = "SET default_transaction_read_only = off; " if state.read_only and statement.startswith("ALTER") else ""
    return writing + statement
