"""A pipeline's own functions on their way to the executors, where only epochline need be installed."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from epochline.declare.functions import load_function
from epochline.declare.specs import CustomSinkSpec, OutboxSpec, PipelineSpec


@dataclass(frozen=True, slots=True)
class ShippedFunctions:
    """The functions that a declaration names, pickled by value on the driver.

    Kept as bytes: whatever pickles the writer again on its way cannot change how the functions were pickled.
    """

    pickled: bytes

    def install(self) -> None:
        """Put the functions where `load_function` finds them; the driver's version replaces any other."""
        functions: dict[str, Any] = cloudpickle.loads(self.pickled)
        modules: dict[str, ModuleType] = {}
        for reference, function in functions.items():
            module, _, name = reference.partition(":")
            setattr(modules.setdefault(module, ModuleType(module)), name, function)
        sys.modules.update(modules)


def ship_functions(pipeline: PipelineSpec) -> ShippedFunctions:
    """Load the functions that run on executors and pickle them, those of installed packages by reference.

    Raises:
        DeclarationError: a function cannot be imported on the driver.
    """
    selects = [sink.topic.select if isinstance(sink, OutboxSpec) else sink.select for sink in pipeline.sinks]
    references = [select for select in selects if select is not None]
    references += [sink.sink for sink in pipeline.external if isinstance(sink, CustomSinkSpec)]
    if isinstance(pipeline.parse, str):
        references.append(pipeline.parse)
    functions = {}
    for reference in references:
        function = load_function(reference)
        module = reference.partition(":")[0]
        if _is_installed(module):
            continue
        pickle_by_value(module)
        functions[reference] = function
    return ShippedFunctions(cloudpickle.dumps(functions))


def pickle_by_value(module: str) -> None:
    """Have everything of a module's package pickled by value from now on, unless it is an installed one."""
    package = sys.modules[module.partition(".")[0]]
    if not _is_installed(module):
        cloudpickle.register_pickle_by_value(package)


def _is_installed(module: str) -> bool:
    """Whether a module belongs to epochline or to what pip put beside it, which executors have too."""
    if module.partition(".")[0] == "epochline":
        return True
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return False
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    return any(folder in Path(file).resolve().parents for folder in installed)
