"""What semantic versioning covers, as `docs/data/public_api.txt` lists it: a change of it is seen in the diff.

``EPOCHLINE_WRITE_PUBLIC_API=1 .venv/bin/pytest -n 0 tests/unit/test_public_api.py`` writes the file.
"""

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

import epochline
from epochline import cli, errors
from epochline.cli import declarations, doctor, execution, overview, plan, stack, standing, trigger
from epochline.cli.installation import Check
from epochline.coordinator.publish import Published
from epochline.local.stack import StackStatus
from epochline.ports.operators import ActionRow
from epochline.postgres.queries.named import statement
from epochline.postgres.queries.versions import MIGRATIONS
from epochline.protocol.savepoint import Savepoint

ROOT = Path(__file__).parents[2]
LISTED = ROOT / "docs" / "data" / "public_api.txt"
IMPORTED = re.compile(r"^ *from (epochline\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
VALUE = re.compile(r"%\(\w+\)s")

# What the JSON of a command is made of: functions with dict literals, dataclasses and named statements.
JSON: Mapping[str, tuple[Callable[..., Any] | type | str, ...]] = {
    "actions": (ActionRow,),
    "doctor": (doctor.doctor, Check),
    "lag": (standing.decided, standing._partitions, standing._row),
    "ledger": ("last_epochs",),
    "ledger --epoch": ("last_epochs", "phases_of_epoch", "ranges_of_epoch", "page_attempts"),
    "list": (overview._row, overview._Schedules.of),
    "migrate": (declarations.migrate,),
    "plan": (plan._as_dict, plan._rows),
    "publish": (Published,),
    "quarantine": ("quarantined_records",),
    "run": (execution._as_dict,),
    "savepoints": (Savepoint,),
    "status": (StackStatus,),
    "trigger": (trigger.trigger,),
    "validate": (declarations.validate,),
}


def names() -> Iterator[str]:
    """The names of the package, and those of its modules that an example on a page imports."""
    yield from (f"epochline.{name}" for name in epochline.__all__)
    for page in (ROOT / "docs").glob("*.md"):
        for module, imported in IMPORTED.findall(page.read_text()):
            for name in imported.split(", "):
                assert hasattr(import_module(module), name), f"{page.name}: {module}.{name}"
                yield f"{module}.{name}"


def views() -> Iterator[tuple[str, list[str]]]:
    script = (MIGRATIONS / "definitions" / "views.sql").read_text()
    for made in sqlglot.parse(script, dialect="postgres"):
        if isinstance(made, exp.Create):
            yield made.this.sql(), made.expression.named_selects


def keys(source: Callable[..., Any] | type | str) -> list[str]:
    if isinstance(source, str):
        text = VALUE.sub("NULL", statement(source)).replace("%%", "%")
        return sqlglot.parse_one(text, dialect="postgres").named_selects  # type: ignore[attr-defined, no-any-return]
    if isinstance(source, type):
        return [*getattr(source, "model_fields", ())] or [field.name for field in fields(source)]
    literals = [
        one for one in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(source)))) if isinstance(one, ast.Dict)
    ]
    return [str(key.value) for one in literals for key in one.keys if isinstance(key, ast.Constant)]


def public() -> Iterator[str]:
    yield from (f"name\t{name}" for name in sorted({*names()}))
    yield from (f"view\t{view}\t{' '.join(columns)}" for view, columns in sorted(views()))
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EpochlineError)
    ]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    others = {
        "an internal error": cli.INTERNAL_ERROR,
        "interrupted": cli.INTERRUPTED,
        "not healthy": stack.NOT_HEALTHY,
    }
    yield from (f"exit code\t{name}\t{code}" for name, code in sorted({**codes, **others}.items()))
    for command, sources in JSON.items():
        yield f"json\t{command}\t{' '.join(dict.fromkeys(key for source in sources for key in keys(source)))}"


def test_what_semantic_versioning_covers_is_what_the_file_lists() -> None:
    """U7: columns of views are only ever added. A line that is gone or shorter needs a new major version."""
    found = list(public())

    if os.environ.get("EPOCHLINE_WRITE_PUBLIC_API"):
        LISTED.write_text("\n".join(found) + "\n")
    assert found == LISTED.read_text().splitlines()
    assert all(not line.endswith("\t") and "*" not in line for line in found)
