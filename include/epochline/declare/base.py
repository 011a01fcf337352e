"""Base model of declarations: errors that name the field and the fix, checks of names and functions."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from epochline.declare.columns import is_reserved, parse_type
from epochline.declare.names import MAX_IDENTIFIER_BYTES
from epochline.errors import DeclarationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Spec = TypeVar("Spec", bound=DataclassInstance)

# True while a declaration is read back from the ledger. It was checked when it was declared, perhaps by a version with
# fewer checks, and must stay readable, if only to abort its epoch. The reading process may not have the functions that
# it names. (pydantic's own context does not reach nested models here.)
reading_back: ContextVar[bool] = ContextVar("reading_back", default=False)


class DeclarationModel(BaseModel):
    """Base of all declarations: frozen, no unknown fields, `DeclarationError` for anything invalid.

    Several have a ``spec``, the values that a Spark worker needs; a ``record``, the columns and types of what is parsed
    or sent; a ``name``, by which the ledger knows a sink or a source.
    """

    # A traceback shows pydantic's error too, and the input may hold a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            kind, name = type(self), fields.get("name") or fields.get("table") or ""
            listed = problems(error, known=kind.model_fields)
            raise DeclarationError(
                f"Invalid declaration of {kind.__name__}{f' {name!r}' if name else ''}: {listed}. Reference:"
                f" docs/reference.md#{kind.__name__.lower()}"
            ) from error

    def _as(self, spec: type[Spec], **others: Any) -> Spec:
        """The values that a Spark worker needs: each as given here, or else the attribute of the same name."""
        names = [field.name for field in dataclasses.fields(spec)]
        return spec(**{name: others[name] if name in others else getattr(self, name) for name in names})


def problems(error: ValidationError, known: Iterable[str] = ()) -> str:
    """List the invalid fields without their input; an unknown one gets the most similar of the known names."""
    listed = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(step) for step in problem["loc"])
        what = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            what += "".join(f"; did you mean {name}?" for name in get_close_matches(where, list(known), n=1))
        listed.append(f"{where}: {what}" if where else what)
    return "; ".join(listed)


def refuse_names(before: str, names: Iterable[str], after: str) -> None:
    """Raise ``ValueError`` with a message around the names, if there are any."""
    listed = ", ".join(names)
    if listed:
        raise ValueError(f"{before} {listed}{after}")


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, sorted."""
    listed = list(names)
    return sorted({name for name in listed if listed.count(name) > 1})


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


def alone(names: Any) -> Any:
    """Let one name stand for a tuple of names."""
    return (names,) if isinstance(names, str) else names


def in_order(columns: Any) -> Any:
    """Turn a list of pairs, which keeps the order of columns in the ledger, back into a dict."""
    return dict(columns) if isinstance(columns, list | tuple) else columns


def known_types(columns: dict[str, str]) -> dict[str, str]:
    """Return columns with their types in canonical spelling; raises ``ValueError`` for an unusable type."""
    return {name: str(parse_type(text)) for name, text in columns.items()}


def check_columns(columns: dict[str, str]) -> dict[str, str]:
    """Return columns with their types in canonical spelling; raises ``ValueError`` for an unusable name or type."""
    return known_types({check_unreserved(name): text for name, text in columns.items()})


def check_plain_name(name: str) -> str:
    """Return the name of a pipeline or of an input; raises ``ValueError`` if it cannot be one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise ValueError(f"{name!r}: up to 100 letters, digits, _ . -, beginning with a letter or digit")
    return name


def check_topic(topic: str, field: str = "") -> str:
    """Return the name of a topic; raises ``ValueError`` if Kafka allows none of this name."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
        raise ValueError(f"{field}Kafka allows no topic named {topic!r} (letters, digits, . _ -, up to 249)")
    return topic


def check_function(reference: Any) -> Any:
    """Check ``module:function`` without importing the module, so that parsing a DAG imports nothing heavy."""
    if not isinstance(reference, str):
        return reference
    if not re.match(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", reference):
        raise ValueError(f"write it as 'pipelines.my_pipeline:my_function', got {reference!r}")
    module, _, function = reference.partition(":")
    if not _defines(module, ast.FunctionDef, function):
        raise ValueError(
            f"there is no module {module!r}; put the function into"
            f" spark_jobs/{module.replace('.', '/')}.py, and put spark_jobs on PYTHONPATH"
        )
    return reference


def check_class(reference: str) -> str:
    """Check ``module:Class`` without importing the module."""
    module, _, name = reference.partition(":")
    if not _defines(module if name else "", ast.ClassDef, name):
        raise ValueError(f"write it as 'module:Class' of a module on PYTHONPATH, got {reference!r}")
    return reference


def _defines(module: str, kind: type[ast.FunctionDef | ast.ClassDef], name: str) -> bool:
    """Whether there is a module; raises ``ValueError`` if it lacks the function or class. See `reading_back`."""
    if reading_back.get():
        return True
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # ValueError: a module without a file, such as __main__ of a prompt
        return False
    if spec is None or spec.origin is None:
        return False
    tree = ast.parse(Path(spec.origin).read_bytes())
    if not any(isinstance(node, kind) and node.name == name for node in tree.body):
        raise ValueError(f"{spec.origin} defines no {'class' if kind is ast.ClassDef else 'function'} {name!r}")
    return True


Names = Annotated[tuple[str, ...], BeforeValidator(alone)]
"""Names, of which one may stand alone."""

ColumnName = Annotated[str, AfterValidator(check_unreserved)]
Columns = Annotated[dict[str, str], AfterValidator(check_columns)]
"""Names of columns with their types, in canonical spelling."""

OrderedColumns = Annotated[Columns, BeforeValidator(in_order)]
"""Columns whose order the ledger keeps too."""

Reference = Annotated[str, AfterValidator(check_function)]
"""``module:function`` that exists."""

ClassReference = Annotated[str, AfterValidator(check_class)]
"""``module:Class`` that exists."""


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError(f"must not be negative, got {value}")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError(f"must be longer than zero, got {value}")
    return value


Pause = Annotated[timedelta, AfterValidator(_not_negative)]
"""A duration of zero or more: seconds, or ISO 8601 (``PT10S``)."""

Duration = Annotated[timedelta, AfterValidator(_positive)]
"""A duration longer than zero: seconds, or ISO 8601 (``PT10S``)."""
