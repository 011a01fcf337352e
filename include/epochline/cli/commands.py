"""The table of commands. A command's module is imported to run or explain the command, not to list it."""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

_MODULES = (
    ("stack", "up down status airflow"),
    ("doctor", "doctor"),
    ("init", "init"),
    ("topics", "feed"),
    ("declarations", "validate migrate"),
    ("plan", "plan"),
    ("preview", "preview"),
    ("run", "run publish"),
    ("ledger", "ledger"),
    ("logs", "logs"),
    ("quarantine", "quarantine"),
    ("why", "why"),
    ("overview", "list lag"),
    ("topics", "verify-topic"),
    ("sql", "sql"),
    ("audit", "audit"),
    ("operations", "abort approve declare-loss adopt-topic requeue extend-back accept-state accept-ledger savepoint"),
    ("operations", "delete-savepoint restore forget drop pause resume actions savepoints janitor"),
    ("savepoint_files", "savepoint-export savepoint-import epoch-files"),
    ("run", "replay"),
    ("drill", "drill"),
    ("trigger", "trigger"),
    ("demo.show", "demo"),
    ("examples", "examples"),
)
"""Modules of `epochline.cli` and their commands, in the order of the help.

The module has a function of the command's name, with ``_`` for each dash; and an application ``app`` if the command has
commands of its own.
"""

COMMANDS = {name: module for module, names in _MODULES for name in names.split()}
"""Every command with its module."""

_TAKE_DASHES = ("airflow", "sql")
"""Commands whose arguments may begin with a dash: the options of Airflow, and a query that begins with a comment."""


def load(name: str) -> Any:
    """The command of a name, from its module.

    Raises:
        KeyError: there is no such command.
    """
    module = import_module(f"epochline.cli.{COMMANDS[name]}")
    app = typer.Typer()
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        settings = {"ignore_unknown_options": name in _TAKE_DASHES}
        app.command(name, context_settings=settings)(getattr(module, name.replace("-", "_")))
    command: Any = get_group(app).commands[name]
    for shown in (command, *getattr(command, "commands", {}).values()):
        shown.help = _without_line_breaks(shown.help)
    return command


def _without_line_breaks(text: str | None) -> str:
    """Typer would keep the line breaks of a docstring, which do not fit a narrow terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n"))


def summaries() -> Mapping[str, str]:
    """The first paragraph of each command's help, from the source text: to import every module takes a second."""
    folder = Path(__file__).parent
    actions = "".join(path.read_text() for path in folder.with_name("operations").glob("*.py"))
    texts = {}
    for name, module in COMMANDS.items():
        text = folder.joinpath(*module.split(".")).with_suffix(".py").read_text()
        function = re.search(rf'^def {name.replace("-", "_")}\(.*?^    """(.+?)(?:\n\n|""")', text, re.M | re.S)
        action = re.search(rf'^    """((?:(?!""").)+)"""\n\n    name = "{name}"$', actions, re.M | re.S)
        described = function or action
        if described is not None:
            texts[name] = " ".join(described[1].partition("\n\n")[0].split())
    return texts


class Commands(TyperGroup):
    """Lists commands from the table. Imports only the module of the command that is run or explained."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.help = _without_line_breaks(self.help)
        self.commands = {name: TyperCommand(name) for name in COMMANDS}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Add to each command what the list says of it."""
        self._describe()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The names of commands, with what the list says of each."""
        self._describe()
        return super().shell_complete(ctx, incomplete)

    def _describe(self) -> None:
        self.commands = {name: TyperCommand(name, help=text) for name, text in summaries().items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that ``args`` name, from its module; Typer refuses an unknown name."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load(name), rest
