"""Imports the functions that a declaration names as ``module:function``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from epochline.errors import DeclarationError


def load_function(reference: str) -> Callable[..., Any]:
    """Import the function; raises `DeclarationError` if the module cannot be imported or has no such function."""
    module, _, name = reference.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DeclarationError(
            f"{reference}: cannot be imported here ({error}). Is spark_jobs/ on PYTHONPATH of this process?"
        ) from error
    return loaded
