"""Passwords and keys of one stack: generated once, kept in files that only their owner can read."""

from __future__ import annotations

import base64
import json
import os
import secrets
import uuid

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from epochline.errors import StackError
from epochline.local.home import Home, write_private

JOB, VIEWER = "epochline_job", "epochline_viewer"
"""Logins of the stack's PostgreSQL with few rights: of Spark jobs (a writer), and of who only looks (a reader)."""


def _password() -> str:
    return secrets.token_urlsafe(24)


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def _cluster_id() -> str:
    # Kafka's own form of a UUID. A leading dash would be read as an option on the command line.
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Credentials(BaseModel):
    """Everything generated for one home. Its text form shows no secret."""

    model_config = ConfigDict(frozen=True)

    postgres: str = Field(default_factory=_password, repr=False)
    epochline: str = Field(default_factory=_password, repr=False)
    epochline_job: str = Field(default_factory=_password, repr=False)
    epochline_viewer: str = Field(default_factory=_password, repr=False)
    airflow: str = Field(default_factory=_password, repr=False)
    airflow_admin: str = Field(default_factory=_password, repr=False)
    airflow_jwt_secret: str = Field(default_factory=_password, repr=False)
    airflow_api_secret_key: str = Field(default_factory=_password, repr=False)
    airflow_fernet_key: str = Field(default_factory=_fernet_key, repr=False)
    kafka_cluster_id: str = Field(default_factory=_cluster_id)


def load(home: Home) -> Credentials | None:
    """The credentials of a home, or None before its first `up`."""
    try:
        return Credentials.model_validate_json(home.secrets.read_text())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        # The validation error would print the file's values: it is neither shown nor chained.
        raise StackError(
            f"{home.secrets} cannot be read ({type(error).__name__}); restore it, or begin anew with "
            "`epochline down --wipe`, which deletes this stack's data"
        ) from None


def ensure(home: Home) -> Credentials:
    """Load the credentials, generating them at the first call for this home (under the home's lock)."""
    known = load(home)
    if known is not None:
        if known.model_fields_set != set(Credentials.model_fields):
            # Of an earlier version: what is new was generated while reading, and is kept from now on.
            _keep(home, known)
        return known
    if home.path("postgres", "data").exists():
        raise StackError(
            f"{home.secrets} is missing, but {home.path('postgres')} holds data protected by its passwords; "
            "restore the file, or begin anew with `epochline down --wipe`, which deletes this stack's data"
        )
    fresh = Credentials()
    _keep(home, fresh)
    return fresh


def _keep(home: Home, made: Credentials) -> None:
    write_private(home.secrets, json.dumps(made.model_dump(), indent=2) + "\n")
