"""Every message about a pipeline that stands ends with the one command that goes on, and the command line knows it."""

import ast
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import epochline
from epochline import errors
from epochline.cli.commands import COMMANDS, load
from epochline.cli.printing import told
from epochline.errors import PipelinePausedError, PipelineStandsError, rebuilt
from epochline.protocol.failures import RecordedError
from epochline.protocol.standing import way_out_of_pause
from tests.ways import way_on

LIBRARY = Path(epochline.__file__).parent
FILLED = "1"
"""Stands for every value that a message inserts: it is a name, a number, an offset and a topic."""


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


def _function(module: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((one for one in module.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def _arguments(module: ast.Module, parameter: str) -> Iterator[ast.expr]:
    """What the module's own calls give for a parameter of its private functions, by position."""
    functions = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.name.startswith("_")]
    places = {one.name: [arg.arg for arg in one.args.args] for one in functions}
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            given = dict(zip(places.get(call.func.id, ()), call.args, strict=False))
            yield from (given[parameter] for _ in range(parameter in given))


def texts(node: ast.expr, module: ast.Module) -> list[str]:
    """What an expression may be, with every inserted value filled in. A function is called."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.Constant(value=None):
            return []
        case ast.JoinedStr(values=parts):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else FILLED for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, module) + texts(other, module)
        case ast.Call(func=ast.Name(id="way_out_of_pause")):
            return [way_out_of_pause(FILLED, None)]
        case ast.Call(func=ast.Name(id=name)) if found := _function(module, name):
            returned = [one.value for one in ast.walk(found) if isinstance(one, ast.Return) and one.value is not None]
            return [text for value in returned for text in texts(value, module)]
        case ast.Name(id=name):
            assigned = [one for one in ast.walk(module) if isinstance(one, ast.Assign)]
            values = [one.value for one in assigned for to in one.targets if isinstance(to, ast.Name) and to.id == name]
            values += _arguments(module, name)
            return [text for value in values for text in texts(value, module)]
    raise AssertionError(f"line {node.lineno}: the command cannot be read from {ast.unparse(node)}")


def parsed(command: str) -> None:
    """Parse a command as the command line does, without running it; ``…`` stands for a reason and for nothing else."""
    assert "…" not in command.replace("--reason …", "")
    name, *arguments = shlex.split(command)
    found = load(name)
    context = found.make_context(name, list(arguments))
    if isinstance(found, TyperGroup):
        inner, command_of_group, rest = found.resolve_command(context, arguments)
        assert command_of_group is not None
        command_of_group.make_context(inner, rest, parent=context)


PLACES = list(raised())

MADE_ELSEWHERE = {
    "command", "self.command", "self.way_on", "way_out_of_pause(name, paused.command)", "shlex.join(arguments)",
}  # fmt: skip
"""Expressions that are a whole command: that of an error or of a standing, or the arguments of a step that failed."""
INSERTED = {"' '.join(chosen)": "--everything"}
"""What stands for an inserted value that is more than one word; any other one is `FILLED`."""


def advised() -> Iterator[tuple[str, str]]:
    """Each command that the library prints between backticks, or alone on a line: where, and the command."""
    for path in sorted(LIBRARY.rglob("*.py")):
        module = ast.parse(path.read_text())
        for line, text in printed(module):
            where = f"{path.relative_to(LIBRARY)}:{line}"
            # Elsewhere, a text that begins so is what PostgreSQL calls a session.
            alone = re.fullmatch(r"epochline (([a-z-]+).*)", text) if path.parent.name == "cli" else None
            for command in re.findall(r"`epochline ([^`]+)`", text) + (
                [alone[1]] if alone and alone[2] in COMMANDS else []
            ):
                whole = re.fullmatch(r"\{(.*)\}", command)
                if whole is None:
                    yield where, re.sub(r"\{(.*?)\}(?=[\s/]|$)", lambda one: INSERTED.get(one[1], FILLED), command)
                elif whole[1] not in MADE_ELSEWHERE:
                    yield from ((where, one) for one in texts(ast.parse(whole[1], mode="eval").body, module))


def printed(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of a module that may be printed, with inserted expressions in braces."""
    hidden: set[int] = set()
    for node in ast.walk(module):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                hidden.update(id(one.value) for one in body if isinstance(one, ast.Expr))  # docstrings
            case ast.JoinedStr(values=parts):
                hidden.update(map(id, parts))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                hidden.update((id(left), id(right)))
            case ast.keyword(arg="application_name", value=value):
                hidden.add(id(value))
    for node in ast.walk(module):
        if id(node) not in hidden and isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            text = in_braces(node)
            if "epochline" in text:
                yield node.lineno, text


def in_braces(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(in_braces, parts))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return in_braces(left) + in_braces(right)
    return f"{{{ast.unparse(node)}}}"


def of_standings() -> Iterator[tuple[str, str]]:
    """The commands of states of pipelines and epochs, and of faults; those of errors are in the ledger."""
    for path in (LIBRARY / "protocol" / "standing.py", LIBRARY / "cli" / "standing.py"):
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            values: list[ast.expr] = []
            match node:
                case ast.keyword(arg="command", value=value):
                    values = [value]
                case ast.Dict(keys=keys, values=found):
                    pairs = zip(keys, found, strict=True)
                    values = [one for key, one in pairs if isinstance(key, ast.Constant) and key.value == "command"]
                case ast.Call(func=ast.Name(id="PipelineStandsError"), args=[_, value]):
                    values = [value]
            for value in values:
                parts = value.values if isinstance(value, ast.BoolOp) else [value]
                for part in parts:
                    if not isinstance(part, ast.Subscript):  # a command that the ledger keeps
                        yield from ((f"{path.relative_to(LIBRARY)}:{part.lineno}", one) for one in texts(part, module))


ADVISED = [*advised(), *of_standings()]


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


@pytest.mark.parametrize(("where", "command"), ADVISED, ids=[f"{where} {command}" for where, command in ADVISED])
def test_every_command_that_the_library_prints_is_one_that_the_command_line_takes(where: str, command: str) -> None:
    """A newcomer types what is printed. An expression that no case fills fails here."""
    parsed(command)


def test_every_command_is_printed_between_backticks_or_alone() -> None:
    """Where it ends is plain to see, and the test above finds it."""
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        for line, text in printed(ast.parse(path.read_text())):
            inside = re.sub(r"`[^`]*`", "", text)
            names = re.findall(r"(?<![\w./:$-])epochline ([a-z-]+)", inside)
            if not text.startswith("epochline ") and set(names) & COMMANDS.keys():
                found.append(f"{path.relative_to(LIBRARY)}:{line}: {text}")
    assert found == []


@pytest.mark.parametrize("command", sorted({command for _, _, commands in PLACES for command in commands}))
def test_an_error_does_not_advise_the_command_that_raised_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = PipelineStandsError("It happened. Mend it.", command)
    advice = f"error: It happened. Mend it. To go on, run `epochline {command}`"

    monkeypatch.setattr(sys, "argv", ["epochline", *shlex.split(command.replace("…", "mended")), "--json"])
    assert told(error) == "error: It happened. Mend it."
    monkeypatch.setattr(sys, "argv", ["epochline", "actions", FILLED])
    assert told(error) == advice


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
