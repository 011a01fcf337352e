"""Signed previews: a form that acts carries what its page showed, to whom, and of which state of the ledger."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from airflow.configuration import conf
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer
from pydantic import BaseModel, ConfigDict, ValidationError

from epochline.errors import ForgedFormError, StalePreviewError

VALID_SECONDS = 15 * 60
"""A preview can be confirmed for so long."""


class Claim(BaseModel):
    """What a token says. The nonce makes the id of the run, so that a form starts one run at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    pipeline: str
    action: str
    given: dict[str, Any]
    state: str
    nonce: str


def signed(*, user: str, pipeline: str, action: str, given: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """A token with a new nonce."""
    claim = Claim(
        user=user, pipeline=pipeline, action=action, given=dict(given), state=fingerprint(state),
        nonce=secrets.token_hex(8),
    )  # fmt: skip
    return _serializer().dumps(claim.model_dump())


def verified(token: str, *, user: str, pipeline: str, action: str) -> Claim:
    """What a token says.

    Raises:
        ForgedFormError: the token was not made here, or for another user, pipeline or action.
        StalePreviewError: the preview is older than `VALID_SECONDS`.
    """
    try:
        claim = Claim.model_validate(_serializer().loads(token, max_age=VALID_SECONDS))
    except SignatureExpired:
        raise StalePreviewError("The preview is older than 15 minutes. Nothing was changed.") from None
    except (BadSignature, ValidationError):
        raise ForgedFormError("The form was not made by this Airflow. Nothing was changed.") from None
    if (claim.user, claim.pipeline, claim.action) != (user, pipeline, action):
        raise ForgedFormError("The form was made for another user, pipeline or action. Nothing was changed.")
    return claim


def fingerprint(state: Mapping[str, Any]) -> str:
    """A digest of a state. Equal states have equal digests."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(conf.get_mandatory_value("api", "secret_key"), salt="epochline.act")
