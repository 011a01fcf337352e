"""Failpoints: off at no cost, refused where forbidden, doing what they are named for, and between any two I/O calls."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from epochline.cli import connections
from epochline.coordinator import begin
from epochline.errors import ConfigurationError
from epochline.failpoints import (
    BY_HAND,
    USE_CASES,
    FailpointError,
    arm,
    calls_of,
    failpoint,
    known_failpoints,
    named_by_hand,
    port_method,
    refuse_here,
    use_cases,
    watched,
    watched_source,
)
from tests.commands import python
from tests.contract.worlds import orders, run
from tests.in_memory.kafka import FakeKafka
from tests.in_memory.ledger import FakeLedger

PORTS = ("Ledger", "Transaction", "OffsetSource")
# What the job and its writers reach PostgreSQL and Spark by, and the sender Kafka.
IO_METHODS = ("execute", "copy_expert", "commit", "rollback", "save", "begin_transaction", "put", "_commit")
CASES = [pytest.param(path, id=path.stem) for path in use_cases()]
JOB = [
    pytest.param(path, id=path.stem)
    for place in BY_HAND
    for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm({})


# Where they are.


@pytest.mark.parametrize("path", CASES)
def test_a_use_case_reaches_the_world_by_its_ports_alone(path: Path) -> None:
    """Every use of a port is a call that the watched ports know, or hands the port on (F1)."""
    tree = ast.parse(path.read_text())
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    given = {
        (arg.arg, arg.annotation.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for arg in (*node.args.args, *node.args.kwonlyargs)
        if isinstance(arg.annotation, ast.Name) and arg.annotation.id in PORTS
    }
    assert given <= {("ledger", "Ledger"), ("tx", "Transaction"), ("source", "OffsetSource")}

    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "sink":
            assert port_method(call), f"{path.name}:{call.lineno}: {ast.unparse(call)} is no step of a sink"

    for node in ast.walk(tree):
        if not isinstance(node, ast.Name) or node.id not in ("ledger", "tx", "source"):
            continue
        up = parents[node]
        if isinstance(up, ast.Call) and node in up.args:
            continue  # handed on
        if ast.unparse(up) == "ledger.sink":
            continue  # makes an object; what it is asked for is looked at above
        if isinstance(up, ast.withitem) and node is up.optional_vars:
            assert node.id == "tx"
            assert isinstance(up.context_expr, ast.Call)
            assert port_method(up.context_expr) == "transaction"
            continue
        while isinstance(up, ast.Attribute):
            up, below = parents[up], up
        assert isinstance(up, ast.Call), f"{path.name}:{node.lineno}: {node.id} is used, but not called"
        assert up.func is below
        assert port_method(up), f"{path.name}:{node.lineno}: {ast.unparse(up)} is no call that the watched ports know"


@pytest.mark.parametrize("path", CASES)
def test_a_use_case_imports_nothing_that_could_do_io(path: Path) -> None:
    """Files, sockets and processes are reached by imports; the rest of the promise is import-linter's contract."""
    light = {
        "__future__", "abc", "collections", "contextlib", "dataclasses", "datetime", "enum", "json", "logging", "re",
        "threading",  # renews the lease of an epoch
        "time", "typing",
    }  # fmt: skip
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").partition(".")[0])
        assert not (isinstance(node, ast.Name) and node.id in ("open", "exec", "eval", "__import__", "print"))

    assert roots <= light | {"epochline"}


def io_and_failpoints(function: ast.FunctionDef) -> list[tuple[int, str | None]]:
    """Lines in the order of the text, each with a failpoint's name, or None for a call that does I/O."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    events: list[tuple[int, str | None]] = []
    for call in sorted(calls, key=lambda one: (one.lineno, one.col_offset)):
        match call.func:
            case ast.Name(id="failpoint"):
                events.append((call.lineno, ast.literal_eval(call.args[0])))
            case ast.Attribute(attr="connect", value=ast.Name(id="psycopg2")):
                events.append((call.lineno, None))
            case ast.Attribute(attr=method) if method in IO_METHODS:
                events.append((call.lineno, None))
    return events


@pytest.mark.parametrize("path", JOB)
def test_the_job_passes_a_failpoint_before_every_io_call(path: Path) -> None:
    """Executor's write, part, manifest and end mark (F1, F2, F3)."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        before = None
        for line, name in io_and_failpoints(function):
            assert name or before, f"{path.name}:{line}: {function.name} does I/O without a failpoint before it"
            before = name


def test_every_failpoint_has_a_name_of_its_own() -> None:
    by_hand = list(named_by_hand())
    by_port = [name for path in use_cases() for names in calls_of(path).values() for name in names]

    assert len(set(by_hand)) == len(by_hand)
    assert len(set(by_port)) == len(by_port)
    assert not set(by_hand) & set(by_port)
    assert {"commit.chain.advance", "seal.attempts.manifests", "commit.commit", "commit.committed"} <= set(by_port)
    assert {"write.copy", "manifest.row", "end.mark"} <= set(by_hand)
    assert {name.partition(".")[0] for name in known_failpoints()} >= {
        "plan", "begin", "write", "manifest", "seal", "commit", "abort", "recover", "discard", "checks", "end", "job",
        "topic",
    }  # fmt: skip


def test_the_name_of_a_local_variable_makes_no_failpoint() -> None:
    """A failpoint is named by port and method: no crash point goes away where a variable is renamed."""
    begun = USE_CASES / "begin.py"
    renamed = re.sub(r"\b(tx|ledger|sink|source)\b(?=[.,)]| as | =)", r"any_\1", begun.read_text())

    methods = [
        [port_method(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        for text in (begun.read_text(), renamed)
    ]

    assert "any_tx.epochs" in renamed
    assert methods[0] == methods[1]


# Off.


@pytest.mark.parametrize("allowed", [None, "", "never"])
def test_a_database_refuses_a_process_with_a_failpoint_unless_it_allows_it(allowed: str | None) -> None:
    refuse_here(allowed)  # without a failpoint, nothing is refused
    arm({"EPOCHLINE_FAILPOINT": "commit.commit:exit"})

    refuse_here("allowed")
    with pytest.raises(ConfigurationError, match="this database allows no failpoints"):
        refuse_here(allowed)


@pytest.mark.parametrize("environment", [{}, {"EPOCHLINE_FAILPOINTS": "forbidden"}], ids=["allowed", "forbidden"])
def test_nothing_is_in_the_way_where_no_failpoint_is_named(environment: dict[str, str]) -> None:
    arm(environment)
    ledger, kafka = FakeLedger(), FakeKafka()

    assert watched(ledger) is ledger
    assert watched_source(kafka) is kafka
    failpoint("write.copy")


@pytest.mark.parametrize("switch", ["forbidden", "yes"])
def test_an_install_that_forbids_failpoints_refuses_one_that_is_named(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_POSTGRES", "postgres://u:p@localhost:1/nowhere")
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHLINE_KAFKA", '{"extra": {"bootstrap.servers": "localhost:1"}}')
    arm({"EPOCHLINE_FAILPOINT": "commit.commit:exit", "EPOCHLINE_FAILPOINTS": switch})

    with pytest.raises(ConfigurationError, match="EPOCHLINE_FAILPOINTS forbids"):
        watched(FakeLedger())
    with pytest.raises(ConfigurationError, match="Unset EPOCHLINE_FAILPOINT"):
        failpoint("write.copy")
    with pytest.raises(ConfigurationError, match="forbids"):
        connections.adapters().ledger(orders())
    with pytest.raises(ConfigurationError, match="forbids"):
        connections.adapters().offsets(orders())


def test_the_image_forbids_failpoints() -> None:
    assert "EPOCHLINE_FAILPOINTS=forbidden" in (Path(__file__).parents[2] / "Dockerfile").read_text()


# On.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("commit.chain.advanced:exit", "no failpoint 'commit.chain.advanced'; near it: commit.chain.advance"),
        ("commit.commit", "write NAME"),
        ("commit.commit:explode", "write NAME"),
        ("commit.commit@0:exit", "write NAME"),
        ("commit.commit:sleep", "write NAME"),
        ("write.copy:exit:once", "EPOCHLINE_FAILPOINT_RECORD"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, said: str) -> None:
    arm({"EPOCHLINE_FAILPOINT": text})

    for _ in range(2):  # a refused failpoint does not act later either
        with pytest.raises(ConfigurationError, match=said):
            failpoint("write.copy")


@pytest.mark.parametrize(("once", "exits"), [("", [137, 137, 137]), (":once", [137, 0, 0])])
def test_exit_ends_the_process_as_sigkill_would_and_is_recorded(once: str, exits: list[int], tmp_path: Path) -> None:
    """With ``once`` it acts in one process and lets the next ones through."""
    record = tmp_path / "fired"
    code = "from epochline.failpoints import failpoint\ntry:\n failpoint('write.copy')\nfinally:\n print('cleaned up')"
    given = {"EPOCHLINE_FAILPOINT": f"write.copy:exit{once}", "EPOCHLINE_FAILPOINT_RECORD": str(record)}

    ended = [python("-c", code, check=False, variables=given) for _ in exits]

    assert [one.returncode for one in ended] == exits
    assert [one.stdout for one in ended] == ["cleaned up\n" if exit_code == 0 else "" for exit_code in exits]
    assert record.read_text() == "write.copy\n" * exits.count(137)


def test_stop_stops_the_process_until_it_is_let_go_on() -> None:
    code = "from epochline.failpoints import failpoint; failpoint('write.copy'); print('went on')"
    given = os.environ | {"EPOCHLINE_FAILPOINT": "write.copy:stop"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=given) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)

        assert process.communicate()[0] == "went on\n"


def test_raise_and_the_nth_time_and_several_at_once() -> None:
    arm({"EPOCHLINE_FAILPOINT": "write.copy@3:raise, write.part:sleep:0"})

    for _ in range(2):
        failpoint("write.copy")
        failpoint("write.part")
    with pytest.raises(FailpointError, match="write.copy"):
        failpoint("write.copy")
    failpoint("write.copy")


@pytest.mark.parametrize(
    ("name", "said"), [("begin.epochs.lock", "failpoint begin.epochs.lock"), ("begin.epochs.lock.2", "no epoch 1")]
)
def test_each_call_of_a_use_case_is_a_place_of_its_own(name: str, said: str) -> None:
    """Two calls of one method in one module have two names; the run without an epoch ends before the second call."""
    assert name in {names[0] for names in calls_of(USE_CASES / "begin.py").values()}
    arm({"EPOCHLINE_FAILPOINT": f"{name}:raise"})

    with pytest.raises(Exception, match=said):
        begin(watched(FakeLedger()), "orders", 1, run(), lease=timedelta(minutes=1))
