"""The rows of the fault matrix, and what of them no test makes. Tests name their row: `@pytest.mark.fault("F13")`."""

FAULTS = {
    "F1": "kill -9 of a task between any two statements of plan, pre-commit, commit, abort",
    "F2": "kill -9 of the Spark driver",
    "F3": "kill -9 of an executor or Python worker in the middle of COPY",
    "F4": "one Spark task fails for ever",
    "F5": "speculative or duplicate Spark task",
    "F6": "the same task twice at once",
    "F7": "zombie: stopped before COMMIT, woken after another attempt committed",
    "F8": "a zombie writes into staging after the next attempt began",
    "F9": "kill -9 of the scheduler while a task runs",
    "F10": "clear, re-run, backfill or abort of a committed epoch; a second trigger at the same time",
    "F11": "the commit's answer is lost",
    "F12": "the connection is cut before COMMIT arrives",
    "F13": "PostgreSQL stops at once: during COPY, after staging, inside COMMIT, right after",
    "F14": "the backend is terminated inside COMMIT",
    "F15": "PostgreSQL pauses, or is slow",
    "F16": "disk full",
    "F17": "lock conflict, DDL at the same time, deadlock",
    "F18": "statement time-out, serialization failure, deadlock, too many connections",
    "F19": "kill -9 of the Kafka broker",
    "F20": "the broker pauses longer than a producer's transaction time-out",
    "F21": "network: cut, one way, slow, reset",
    "F22": "a producer zombie wakes and commits its Kafka transaction",
    "F23": "open transaction at the tail, aborted transactions, a range of aborted records alone",
    "F24": "offset gaps: compaction, also between two attempts; markers",
    "F25": "retention passed the head, or passes during the read",
    "F26": "topic deleted and made again, shorter and longer than before",
    "F27": "partitions added between plan and read, and between epochs; a new topic matches the pattern",
    "F28": "poison records: not JSON, not UTF-8, NUL bytes, wrong type, out of range, a value left out",
    "F29": "null key, tombstone, empty value, headers, one key twice",
    "F30": "huge records, all records in one partition, wide rows",
    "F31": "clocks jump, drift and disagree",
    "F32": "late and out-of-order events",
    "F33": "state table damaged, missing or of a later epoch",
    "F34": "the target's columns change between pre-commit and commit",
    "F35": "upgrade: a ledger of release 0.1.0 upgraded and continued by this code; a newer one refused",
    "F36": "several pipelines on one database and target",
    "F39": "a Spark Connect server is killed, or the client whose job it runs",
    "F40": "Airflow's triggerer is killed, which starts runs when records wait",
    "F38": "the database is put back to a backup, and its newer state is lost",
    "F41": "a trigger, a rule or row-level security of the target keeps, moves, changes or adds rows",
    "F42": "rows of other tables refer to rows that a restore or a replay takes out",
    "F43": "a target is renamed away, made again, or put back from a dump",
    "F44": "a publication of all tables is made while a pipeline is at work",
    "F45": "rows of one epoch pass unique values on, or refer to each other by foreign keys",
    "F46": "Kafka is put back to a backup, and grows again before the next run",
    "F47": "the broker forgets the producers whose markers and aborted records are in the log",
    "F48": "state is written past its triggers",
    "F49": "a partition is silent although records of it wait",
    "F51": "the database or the role sets how texts of values are read and written",
    "F53": "a password of PostgreSQL and a token of Kafka expire in the middle of an epoch",
    "F54": "a machine that runs tasks loses its power or its network, while another one runs the next try",
    "F55": "on YARN: kill -9 of an executor, of a driver that YARN starts again, of a task whose application goes on",
    "F56": "a rolling upgrade: two versions at work on an epoch, the ledger migrated at any moment",
    "F57": "a standby of PostgreSQL takes the place of the primary, with the last commits or without; the old one comes"
    " back",
    "F58": "of three Kafka nodes, one is killed, stands still or is cut off from the others; an unclean election loses a"
    " tail; a rolling restart",
    "F59": "a producer's transactional id expires while it is idle; a transaction that nobody ends",
    "F60": "the folder of a file sink is moved, not mounted, or an older copy of itself",
    "F61": "Airflow loses its API server, a scheduler, XCom, or a run that is at work; an id used again; many runs",
    "F62": "bytes rot: in a staged row, a file, a manifest, state, or a count of the ledger",
}

PARTLY = {
    "F3": "The workers are processes of one machine.",
    "F5": "Spark starts no speculative copy on the host of the original, so the test makes the two tries itself.",
    "F15": "The server stands still for 3 s: longer than the pauses of the clients, shorter than a failover of 30 s.",
    "F16": "Full disks of Kafka's log, of Spark's local folder and of Airflow's logs are not made.",
    "F19": "In plan, the broker is dead before it is asked.",
    "F21": "The network to Kafka is never slow; it is cut one way for a publisher alone.",
    "F25": "Recovery is counted from an operator's command.",
    "F26": "No recovery is measured: an operator decides.",
    "F46": "Recovery is counted from an operator's command.",
    "F54": "The machines are namespaces of one kernel, with one clock and one disk.",
    "F55": "The containers are processes of one machine. No test has Kerberos or a vendor's cluster.",
    "F56": "The versions are 0.1.0, 0.2.0, this one and two made up from it. No test runs an Airflow of two versions.",
    "F31": "No test sets the clock of the machine or of the broker.",
}
"""Rows with a test that covers less than the fault's whole description."""

_PROTOCOL = ("coordinator", "ports", "postgres", "protocol")
_WRITER = (*_PROTOCOL, "arrow", "spark")
_JOB = (*_WRITER, "kafka", "sources")
_SOURCE = (*_PROTOCOL, "kafka")
_SINKS = (*_JOB, "sinks")

SPEAKS_OF = {
    **dict.fromkeys(("F1", "F19", "F20", "F21", "F22", "F58", "F59"), _SINKS),
    **dict.fromkeys(("F2", "F3", "F4", "F39"), (*_JOB, "local")),
    "F55": (*_JOB, "airflow"),
    **dict.fromkeys(("F5", "F6", "F7", "F8", "F13", "F14", "F15", "F16"), _WRITER),
    "F9": (*_PROTOCOL, "airflow", "local"),
    "F10": (*_PROTOCOL, "airflow"),
    **dict.fromkeys(("F11", "F12", "F17", "F18", "F31", "F34", "F43", "F44", "F57"), _PROTOCOL),
    **dict.fromkeys(("F23", "F24", "F25", "F26", "F27"), _SOURCE),
    **dict.fromkeys(("F28", "F29", "F30", "F32", "F33", "F49", "F51"), (*_JOB, "declare")),
    **dict.fromkeys(("F35", "F36"), (*_PROTOCOL, "declare")),
    "F48": (*_PROTOCOL, "declare", "audit"),
    "F38": (*_SINKS, "operations"),
    "F46": (*_SOURCE, "operations"),
    "F47": _SOURCE,
    "F40": (*_SOURCE, "airflow"),
    "F53": (*_SINKS, "config"),
    "F45": _PROTOCOL,
    "F54": (*_JOB, "airflow"),
    **dict.fromkeys(("F41", "F42"), (*_PROTOCOL, "operations")),
    "F56": (*_SINKS, "declare"),
    "F62": (*_SINKS, "audit"),
    "F61": (*_SINKS, "airflow"),
    "F60": (*_PROTOCOL, "sinks"),
}
"""Folders of ``include/epochline`` whose code decides what comes of a fault."""


def speaks_of(fault: str, test: str) -> tuple[str, ...]:
    """The paths that a line of docs/reliability.md speaks of, as beginnings; the file of its test is one of them."""
    file = test.partition("::")[0]
    folders = {*SPEAKS_OF[fault], *(("airflow",) if file.startswith("tests/airflow/") else ())}
    return (*(f"include/epochline/{folder}/" for folder in sorted(folders)), file)
