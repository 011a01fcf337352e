"""Every message about a pipeline that stands ends with the one command that goes on, and the command line knows it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer

import epochline
from epochline import errors
from epochline.cli.commands import COMMANDS, registered_by
from epochline.errors import (
    PipelinePausedError,
    PipelineStandsError,
    rebuilt,
)
from epochline.protocol.failures import RecordedError
from epochline.protocol.standing import way_out_of_pause
from tests.ways import way_on

LIBRARY = Path(epochline.__file__).parent
FILLED = "1"
"""Stands for every value that a message inserts: it is a name, a number, an offset and a topic."""
MODULE_OF = {name: module for module, commands in COMMANDS.items() for name in commands}


def kinds(base: type[PipelineStandsError] = PipelineStandsError) -> set[str]:
    found = {one.__name__ for one in base.__subclasses__()}
    return found.union(*map(kinds, base.__subclasses__()))


def raised() -> Iterator[tuple[str, str, Sequence[str]]]:
    """Each place of the library that makes such an error: where, which one, and the commands that it may end with."""
    known = kinds()
    for path in sorted(LIBRARY.rglob("*.py")):
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
                where = f"{path.relative_to(LIBRARY)}:{node.lineno}"
                yield where, node.func.id, texts(node.args[1], module) if len(node.args) == 2 else ()


def texts(node: ast.expr, module: ast.Module) -> list[str]:
    """What an expression may be, with every inserted value filled in. A function is called."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else FILLED for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, module) + texts(other, module)
        case ast.Call(func=ast.Name(id="way_out_of_pause")):
            return [way_out_of_pause(FILLED, None)]
        case ast.Name(id=name):
            assigned = [one for one in ast.walk(module) if isinstance(one, ast.Assign)]
            values = [one.value for one in assigned for to in one.targets if isinstance(to, ast.Name) and to.id == name]
            return [text for value in values for text in texts(value, module)]
    raise AssertionError(f"line {node.lineno}: the command cannot be read from {ast.unparse(node)}")


def parsed(command: str) -> None:
    name, *arguments = shlex.split(command)
    registered_by(MODULE_OF[name])[name].make_context(name, arguments)


PLACES = list(raised())


def test_every_kind_of_error_after_which_a_pipeline_stands_is_made_somewhere() -> None:
    assert {kind for _, kind, _ in PLACES} == kinds()


@pytest.mark.parametrize(("where", "kind", "commands"), PLACES, ids=[f"{kind} {where}" for where, kind, _ in PLACES])
def test_a_message_after_which_a_pipeline_stands_ends_with_a_command_that_the_command_line_takes(
    where: str, kind: str, commands: Sequence[str]
) -> None:
    assert commands, "the error has no command"
    for command in commands:
        parsed(command)
        message = str(getattr(errors, kind)("It happened.", command))
        assert message == f"It happened. To go on, run `epochline {command}`"
        assert way_on(message) == command


def test_every_other_way_on_that_the_library_names_is_a_command_too() -> None:
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        module = ast.parse(path.read_text())
        said = [node for node in ast.walk(module) if isinstance(node, ast.JoinedStr)]
        for text in (text for node in said for text in texts(node, module)):
            found += re.findall(r"To go on, run `epochline ([^`]{2,})`", text)
    assert found, "no message of the library names a way on"
    for command in found:
        parsed(command)


def test_a_command_that_the_command_line_does_not_take_is_found() -> None:
    with pytest.raises(typer.BadParameter, match="reason"):
        parsed("resume shop")
    with pytest.raises(KeyError):
        parsed("restart shop")


def test_a_paused_pipeline_is_resumed_unless_its_ledger_went_back() -> None:
    """To resume a pipeline whose ledger went back would only stop it again; accept-ledger resumes it."""
    assert way_out_of_pause("shop", "accept-ledger shop --reason …") == "accept-ledger shop --reason …"
    assert way_out_of_pause("shop", None) == "resume shop --reason …"


def test_a_message_that_another_process_recorded_keeps_its_command() -> None:
    made = PipelinePausedError("shop: is paused.", "resume shop --reason …")

    kept = RecordedError.of(made)

    assert (str(kept), kept.command) == ("PipelinePausedError: shop: is paused.", "resume shop --reason …")
    assert str(rebuilt(kept.error_class, kept.said, kept.command)) == str(made)
    assert way_on(str(made)) == "resume shop --reason …"
    assert way_on("shop: goes on") is None
