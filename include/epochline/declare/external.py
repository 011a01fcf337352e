"""External sinks, whose rows Spark writes directly instead of staging them: files, and third-party sinks."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from epochline.declare.base import ClassReference, DeclarationModel, OrderedColumns, Reference, reading_back
from epochline.declare.columns import LINEAGE
from epochline.declare.specs import CustomSinkSpec, ExternalSpec, FilesSpec
from epochline.declare.table import PostgresTable


class ExternalRows(PostgresTable):
    """Rows of an external sink in the form of an append target. Nothing is staged for them."""


class ExternalSink(DeclarationModel):
    """Base of the external sinks.

    Args:
        columns: names and PostgreSQL types of the rows.
        select: ``module:function`` from parsed batch to this sink's batch (same rows, same order); by default columns
            are taken by name.
        aggregated: whether a ``transform`` makes rows that belong to no single record; they carry no lineage, in a
            table only ``_epoch``.
        max_unpublished_epochs: no epoch is planned while this many epochs wait to be shown.
    """

    columns: OrderedColumns = Field(min_length=1)
    select: Reference | None = None
    aggregated: bool = False
    max_unpublished_epochs: int = Field(default=100, ge=1)

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def spec(self) -> ExternalSpec:
        raise NotImplementedError

    @property
    def rows(self) -> ExternalRows:
        """The sink's rows in the form of an append target."""
        # Not validated, because the sink's name is no table name.
        return ExternalRows.model_construct(
            table=self.name, columns=self.columns, select=self.select, aggregated=self.aggregated
        )

    @property
    def written(self) -> dict[str, str]:
        """Columns and types of the rows that a writer receives: the declared columns, then the record's position."""
        lineage = {} if self.aggregated else {name: kind for name, kind in LINEAGE.items() if name != "_epoch"}
        return {**self.columns, **lineage}

    def __str__(self) -> str:
        return self.name


_PASSWORD = re.compile("://[^/]*:[^/]*@")

_LOCAL = ("file", "local")
_HDFS = "webhdfs"
"""fsspec's schemes of folders: of local paths, and of a store with folders as on a disk."""

_OBJECT_STORES = ("s3", "gs", "abfs", "memory")
"""fsspec schemes of stores that create a file as a whole and refuse to create it twice, one spelling each."""


class Files(ExternalSink):
    """A folder of files, shown epoch by epoch: by an atomic rename on a local disk, by a manifest everywhere.

    Args:
        path: the folder: a local path, or a URL without a password: ``s3://``, ``gs://``, ``abfs://`` or ``webhdfs://``.
        format: ``parquet``, ``csv`` (with a header line) or ``json`` (one object per line).
    """

    path: str
    format: Literal["parquet", "csv", "json"] = "parquet"

    @field_validator("path")
    @classmethod
    def _path_is_one(cls, path: str) -> str:
        # The ledger names the sink by its stored path, which may be older than these rules.
        return path if reading_back.get() else _one_spelling(path)

    @property
    def name(self) -> str:
        return f"files:{self.path}"

    @property
    def spec(self) -> FilesSpec:
        return self._as(FilesSpec)


def _one_spelling(path: str) -> str:
    """Normalise a folder's path, because two sinks of one folder would lose rows."""
    if _PASSWORD.search(path):
        raise ValueError(
            "a URL must not hold a password, because a declaration is kept and shown; the driver takes credentials"
            " from its own environment variables or from fsspec's configuration (docs/files.md)"
        )
    scheme, separator, rest = path.partition("://")
    if scheme in _LOCAL and separator:
        scheme, separator, rest = "", "", rest
    elif not separator:
        scheme, rest = "", path
    if scheme and scheme not in (_HDFS, *_OBJECT_STORES):
        raise ValueError(
            f"{scheme}:// is not supported, because a reader could see a part of a file there, or an epoch twice; use a"
            " local path, s3://, gs://, abfs:// or, for HDFS, webhdfs:// (docs/files.md)"
        )
    if scheme in _OBJECT_STORES:
        # Names in an object store are plain text: an empty name between two slashes is valid there.
        return f"{scheme}{separator}{rest.rstrip('/')}"
    host, slash, folders = rest.partition("/")
    if not scheme and (host or not slash):
        raise ValueError("write an absolute path, because each task runs in its own folder")
    parts = [part for part in folders.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("write the path without '..', which may lead to another folder on each host")
    return f"{scheme}{separator}{host}" + (f"/{'/'.join(parts)}" if parts or not scheme else "")


class CustomSink(ExternalSink):
    """A third-party sink: a class with the methods of `epochline.protocol.sink.Sink`.

    Args:
        sink: ``module:Class``, constructed with ``options`` as keyword arguments on the driver and on executors.
        options: JSON values. The ledger keeps them with the declaration, so they must hold no secrets.
        label: name of the sink in the ledger and in messages; by default ``sink``.
    """

    sink: ClassReference
    options: dict[str, Any] = Field(default_factory=dict)
    label: str | None = None

    @property
    def name(self) -> str:
        return f"own:{self.label or self.sink}"

    @property
    def spec(self) -> CustomSinkSpec:
        return self._as(CustomSinkSpec)
