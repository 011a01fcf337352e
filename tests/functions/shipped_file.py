"""A shipped DAG file as a module, for DAG files of the tests that show what it makes."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType


def loaded(path: Path) -> ModuleType:
    """Execute a file; its loader takes the bytecode that `make setup` wrote."""
    loader = SourceFileLoader(f"shipped_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    made = module_from_spec(spec)
    loader.exec_module(made)
    return made
