"""The table of commands. A command's module is imported to run or explain the command, not to list it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "stack": {
        "up": (
            "Start PostgreSQL, Kafka, Spark and Airflow, and wait until they are ready. A repeat repairs what crashed."
        ),
        "down": "Stop what `up` started, and nothing else. Data stays unless --wipe is given.",
        "status": "Show the parts of the stack: health, version, address, and the files that hold passwords.",
        "airflow": "Run Airflow's own command line on the stack's Airflow, with its settings and connections.",
    },
    "init": {
        "init": "Write a new pipeline NAME: its declaration, its test and a sample record. Overwrites nothing.",
    },
    "feed": {"feed": "Send the lines of FILE to a topic, one record per line, acknowledged by Kafka."},
    "validate": {
        "validate": (
            "Check declarations and their functions, and compare tables where the database answers. Changes nothing."
        ),
    },
    "migrate": {
        "migrate": "Migrate the ledger to this version, and create declared target tables that are missing.",
    },
    "plan": {
        "plan": "Show what the next epoch of PIPELINE would read, and how its declaration changed. Changes nothing.",
    },
    "preview": {
        "preview": (
            "Parse the next records of PIPELINE here, and show rows and refusals; run its transform. Writes nothing."
        ),
    },
    "run": {"run": "Run epochs of PIPELINE here, without Airflow: plan, stage with Spark, seal, commit."},
    "publish": {
        "publish": (
            "Show every committed epoch of PIPELINE in every topic, folder and other sink that does not show it yet."
        ),
    },
    "ledger": {"ledger": "Show the last epochs of the ledger, or with --epoch one epoch in full."},
    "logs": {
        "logs": "Print the logs of the tasks that made an epoch of PIPELINE, with Spark's output; the newest epoch's.",
    },
    "quarantine": {
        "quarantine": (
            "List the records that epochs of PIPELINE set aside, or with --show one record with its bytes and headers."
        ),
    },
    "overview": {
        "list": "List the declared pipelines: state, lag, last commit and what it quarantined, schedule and next run."
    },
    "lag": {
        "lag": (
            "Show the lag of each partition: head, end of the log, records between them, and time since the last"
            " commit."
        ),
    },
    "verify_topic": {
        "verify-topic": (
            "Count a topic's records as a read_committed and as a read_uncommitted consumer, side by side."
        ),
    },
    "sql": {
        "sql": "Open psql on the target database, or run QUERY and show its rows. Read only unless --write is given.",
    },
    "audit": {
        "audit": "Read committed ranges of PIPELINE again and compare counts, digests and rows. Changes nothing.",
    },
    "operations": {
        "abort": (
            "End EPOCH of PIPELINE: its staging is discarded, no offset moves, its range is read again by a later run."
            " Also an epoch that is pre-committed. A committed epoch stays as it is."
        ),
        "declare-loss": (
            "Declare that offsets of PIPELINE which retention deleted before they were read are lost: each partition"
            " goes on at its log start, and the ledger keeps the gap. With --holes: offsets inside a log at which Kafka"
            " holds nothing, neither records nor transaction markers. Refused where nothing is lost."
        ),
        "adopt-topic": (
            "Continue with TOPIC although its log is another one now (deleted and made again, or truncated). A new"
            " generation of PIPELINE begins: in TOPIC where --at says, in every other topic at its head. Committed rows"
            " stay."
        ),
        "requeue": (
            "Read chosen records of PIPELINE's quarantine again, with today's parse, as an epoch of their own. Each is"
            " written once; one that fails again stays, with the new reason."
        ),
        "extend-back": (
            "Commit what lies before the origin of PIPELINE, back to TO, in epochs that each end at the origin and move"
            " it back. Heads do not move. Only for targets of mode append and add."
        ),
        "accept-state": (
            "Go on with the state and the targets of PIPELINE as they are now, although they are not what the last"
            " committed epoch left. What they held then is not brought back."
        ),
        "accept-ledger": (
            "Go on with the ledger of PIPELINE although it went back in time, as from a backup, and the newer one is"
            " lost. What topics and folders show is taken over: those offsets are read again into the tables alone, so"
            " that nothing is shown twice and nothing is missing. Refused where the ledger knows everything that is"
            " shown."
        ),
        "savepoint": (
            "Keep where PIPELINE stands now under NAME, with a copy of its state, until somebody deletes it. `restore`"
            " puts everything back to it, and a new pipeline can begin from it."
        ),
        "delete-savepoint": (
            "Delete the savepoint NAME of PIPELINE, with its copy of the state. Nothing else changes."
        ),
        "restore": (
            "Put PIPELINE back to its savepoint NAME: heads, state and targets in one transaction. The epochs since"
            " then are undone and their ranges are read again. With --of OTHER, PIPELINE is new, and begins from"
            " OTHER's savepoint with empty targets."
        ),
        "drop": (
            "Drop PIPELINE for good: its targets are released for other pipelines, left-over staging and the mirrored"
            " consumer group are deleted. Its tables and its history stay, and its name is refused from then on."
        ),
        "pause": (
            "Plan no epoch of PIPELINE until it is resumed; its runs end as skipped. What is planned already goes on,"
            " and what is pre-committed may still be committed."
        ),
        "resume": "Let epochs of PIPELINE be planned again.",
        "actions": (
            "Show operators' actions on PIPELINE, the newest last: who, when, why, and the values before and after."
        ),
        "savepoints": ("Show the savepoints of PIPELINE: epoch, size of the state, author, time and reason."),
        "janitor": (
            "Drop staging that no attempt needs, end abandoned epochs, report tables that no attempt explains."
        ),
    },
    "savepoint_files": {
        "savepoint-export": (
            "Write the savepoint NAME of PIPELINE to FILE: heads, declaration and state, without the target's rows."
        ),
        "savepoint-import": (
            "Import the savepoint in FILE. A new pipeline can begin from it: `restore NEW NAME --of PIPELINE"
            " --reason …`."
        ),
        "epoch-files": (
            "List the files that the newest committed epochs of PIPELINE left, or with --show print one as JSON."
        ),
    },
    "replay": {
        "replay": (
            "Read the ranges of a committed epoch of PIPELINE again with today's code, and compare with what it"
            " committed."
        ),
    },
    "trigger": {
        "trigger": ("Start a run of PIPELINE in the stack's Airflow, follow its tasks, and print the outcome."),
    },
    "demo.command": {
        "demo": (
            "Feed an access log while Airflow runs epochs, kill a Spark driver, and compare the result with the log."
        ),
    },
    "examples": {"examples": "The shipped examples: list, enable, disable and run them."},
}
"""The commands of each module of `epochline.cli`, in the order of the help, with the first paragraph of their help."""

_MODULE_OF = {name: module for module, commands in COMMANDS.items() for name in commands}


def registered_by(module: str) -> Mapping[str, Any]:
    """The commands that a module registers, by name. Imports the module.

    Args:
        module: its name within `epochline.cli`.
    """
    app = typer.Typer()
    import_module(f"epochline.cli.{module}").register(app)
    return get_group(app).commands


class Commands(TyperGroup):
    """Lists commands from the table. Imports only the module of the command that is run or explained."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: help for commands in COMMANDS.values() for name, help in commands.items()}
        self.commands = {name: TyperCommand(name, help=help) for name, help in listed.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that ``args`` name, from its module; Typer refuses an unknown name."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else registered_by(_MODULE_OF[name])[name], rest
