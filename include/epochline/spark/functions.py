"""Ships a pipeline's own functions to the executors, where only epochline needs to be installed."""

import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from pyspark import cloudpickle

from epochline.config.registry import Registries
from epochline.declare.specs import CustomSinkSpec, OutboxSpec, PipelineSpec, load_function
from epochline.declare.version import VERSION
from epochline.errors import VersionError

NO_REGISTRIES = Registries()

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def of_this_version(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """The function of a task, which a worker with another version of epochline refuses before it does anything.

    What the driver pickles has the fields of the driver's classes. Another version would put their values into its own
    fields by their order, so that a value could change in silence. The function is therefore pickled apart.

    Raises, in a worker, `VersionError`.
    """
    pickled, version = cloudpickle.dumps(function), VERSION

    def run(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        # This text travels with the job; the worker's own package says which version it is.
        from epochline.declare.version import VERSION as HERE

        if version != HERE:
            raise VersionError(
                f"the driver of this job has epochline {version}, and a Python worker of Spark has {HERE}. Nothing was"
                " written. Install the same version for Airflow and for every machine of Spark, and restart Spark's"
                " server."
            )
        loaded: Callable[_Given, _Result] = cloudpickle.loads(pickled)
        return loaded(*given, **named)

    return run


@dataclass(frozen=True, slots=True)
class ShippedFunctions:
    """The functions that a declaration names, pickled by value on the driver, and its schema registries."""

    pickled: bytes  # so that the writer's pickle does not pickle them again
    registries: Registries = field(default=NO_REGISTRIES, repr=False)

    def install(self) -> None:
        """Make the functions available to `load_function`; the driver's version replaces any other."""
        self.registries.install()
        functions: dict[str, Any] = cloudpickle.loads(self.pickled)
        modules: dict[str, ModuleType] = {}
        for reference, function in functions.items():
            module, _, name = reference.partition(":")
            setattr(modules.setdefault(module, ModuleType(module)), name, function)
        sys.modules.update(modules)


def ship_functions(pipeline: PipelineSpec, registries: Registries = NO_REGISTRIES) -> ShippedFunctions:
    """Load and pickle the functions that run on executors, except those of installed packages.

    Raises `DeclarationError` if a function cannot be imported on the driver.
    """
    named: list[object] = [pipeline.parse]
    for sink in pipeline.sinks:
        named += [sink.topic.select, sink.topic.value] if isinstance(sink, OutboxSpec) else [sink.select]
    named += [sink.sink for sink in pipeline.external if isinstance(sink, CustomSinkSpec)]
    return ship([reference for reference in named if isinstance(reference, str)], registries)


def ship(references: Iterable[str], registries: Registries = NO_REGISTRIES) -> ShippedFunctions:
    """As `ship_functions`, for functions or classes by ``module:name``."""
    functions = {}
    for reference in references:
        function = pickle_by_value(reference)
        if not _is_installed(reference.partition(":")[0]):
            functions[reference] = function
    return ShippedFunctions(cloudpickle.dumps(functions), registries)


def pickle_by_value(reference: str) -> Any:
    """Load a function, and pickle its package by value from now on, unless the package is installed."""
    function, module = load_function(reference), reference.partition(":")[0]
    if not _is_installed(module):
        cloudpickle.register_pickle_by_value(sys.modules[module.partition(".")[0]])
    return function


def _is_installed(module: str) -> bool:
    """Whether a module belongs to epochline or to an installed package, which executors have too."""
    if module.partition(".")[0] == "epochline":
        return True
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return False
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    return any(folder in Path(file).resolve().parents for folder in installed)
