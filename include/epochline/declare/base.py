"""Base model of declarations: errors that name the field and the fix, checks of names and functions."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from epochline.declare.columns import parse_type
from epochline.declare.names import MAX_IDENTIFIER_BYTES
from epochline.declare.reserved import is_reserved
from epochline.errors import DeclarationError

# True while a declaration is read back from the ledger. It was checked when it was declared, and the reading process
# may not have the functions that it names. (pydantic's own context does not reach nested models here.)
reading_back: ContextVar[bool] = ContextVar("reading_back", default=False)

_REFERENCE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class DeclarationModel(BaseModel):
    """Base of all declarations: frozen, no unknown fields, `DeclarationError` for anything invalid."""

    # A traceback shows pydantic's error too, and the input may hold a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DeclarationError(_readable(type(self), fields, error)) from error


def _readable(kind: type[BaseModel], fields: dict[str, Any], error: ValidationError) -> str:
    name = fields.get("name") or fields.get("table") or ""
    said = problems(error, known=kind.model_fields)
    where = f"docs/reference.md#{kind.__name__.lower()}"
    return f"Invalid declaration of {kind.__name__}{f' {name!r}' if name else ''}: {said}. Reference: {where}"


def problems(error: ValidationError, known: Iterable[str] = ()) -> str:
    """List the invalid fields without their input, which pydantic's own text would show.

    An unknown field gets the name out of ``known`` that is most like it.
    """
    found = []
    for one in error.errors(include_url=False):
        where = ".".join(str(step) for step in one["loc"])
        what = str(one["msg"]).removeprefix("Value error, ")
        if one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
            what += "".join(f"; did you mean {name}?" for name in get_close_matches(where, list(known), n=1))
        found.append(f"{where}: {what}" if where else what)
    return "; ".join(found)


def check_identifier(name: str) -> str:
    """Return a name that PostgreSQL takes unchanged; raises ``ValueError`` for any other."""
    if not name or "\0" in name:
        raise ValueError("a name must not be empty or hold a NUL")
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise ValueError(f"{name!r} is longer than PostgreSQL's {MAX_IDENTIFIER_BYTES} bytes; shorten it")
    return name


def check_unreserved(name: str) -> str:
    """Return a name that a column may have; raises ``ValueError`` for a name that Epochline uses itself."""
    if is_reserved(check_identifier(name)):
        other = name.lstrip("_")
        raise ValueError(
            f"{name!r} is a name that epochline uses for a column itself; name the column otherwise. Json reads a"
            f" member under another name with paths={{'{other}': '$.{name}'}}"
        )
    return name


def in_order(columns: Any) -> Any:
    """Turn a list of pairs, which keeps the order of columns in the ledger, back into a dict."""
    return dict(columns) if isinstance(columns, list | tuple) else columns


def check_columns(columns: dict[str, str]) -> dict[str, str]:
    """Return columns with their types in canonical spelling; raises ``ValueError`` for an unusable name or type."""
    checked = {}
    for name, text in columns.items():
        check_unreserved(name)
        checked[name] = str(parse_type(text))
    return checked


def check_reference(reference: str) -> str:
    """Check ``module:function`` without importing the module, so that parsing a DAG imports nothing heavy."""
    if not _REFERENCE.match(reference):
        raise ValueError(f"write it as 'pipelines.my_pipeline:my_function', got {reference!r}")
    if reading_back.get():
        return reference
    module, _, function = reference.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # ValueError: a module without a file, such as __main__ of a prompt
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(
            f"there is no module {module!r}; put the function into"
            f" spark_jobs/{module.replace('.', '/')}.py, and put spark_jobs on PYTHONPATH"
        )
    tree = ast.parse(Path(spec.origin).read_bytes())
    if not any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
        raise ValueError(f"{spec.origin} defines no function {function!r}")
    return reference


def check_class(reference: str) -> str:
    """Check ``module:Class`` without importing the module, unless the declaration is read from the ledger."""
    module, _, name = reference.partition(":")
    if reading_back.get():
        return reference
    try:
        spec = importlib.util.find_spec(module) if name else None
    except (ModuleNotFoundError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"write it as 'module:Class' of a module on PYTHONPATH, got {reference!r}")
    tree = ast.parse(Path(spec.origin).read_bytes())
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        raise ValueError(f"{spec.origin} defines no class {name!r}")
    return reference


Reference = Annotated[str, AfterValidator(check_reference)]
"""``module:function`` that exists."""
