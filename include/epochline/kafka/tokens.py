"""Tokens with which Kafka's clients log in: an OIDC issuer's, for a client's id and secret, or those of AWS's signer.

Both clients log in again before a session ends that a broker gave a token's life (KIP-368), and ask for a token then.
"""

import json
import os
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from epochline.config.kafka import (
    AWS_TOKENS,
    CLIENT_ID,
    CLIENT_SECRET,
    ENDPOINT,
    EXTENSIONS,
    ISSUER_CA,
    MECHANISM,
    OF_TOKENS,
    SCOPE,
    SERVERS,
    TOKENS,
    python_settings,
)
from epochline.errors import ConfigurationError, SourceAuthenticationError, one_line

TOKEN_PROVIDER = "sasl_oauth_token_provider"  # noqa: S105 - a name
_SECONDS = 10
_LIFE_SECONDS = 300
"""Life of a token, in seconds, if its issuer says nothing."""
_TOO_MANY, _SERVER_ERRORS = 429, 500
_REGION = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com")


class Tokens:
    """The tokens of one client. librdkafka calls the object, kafka-python its methods.

    A call raises `SourceAuthenticationError` if the issuer refuses the client, and `OSError` if no token could be had
    now. A token is given until half of its life is over.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Describe a client by the settings of its connection."""
        self._settings = settings
        self._token, self._expires, self._renew = "", 0.0, 0.0

    def __call__(self, _config: object = None) -> tuple[str, float, str, dict[str, str]]:
        """A token, when it expires (seconds since 1970), a name for the client's log, and SASL extensions."""
        now = time.time()
        if now >= self._renew:
            fetch = _signed_by_aws if self._settings[MECHANISM] == AWS_TOKENS else _issued
            self._token, self._expires = fetch(self._settings)
            self._renew = now + (self._expires - now) / 2
        return self._token, self._expires, "epochline", self.extensions()

    def token(self) -> str:
        """A token, for kafka-python."""
        return self()[0]

    def extensions(self) -> dict[str, str]:
        """The declared SASL extensions, for kafka-python."""
        pairs = (pair.partition("=") for pair in self._settings.get(EXTENSIONS, "").split(",") if pair)
        return {name.strip(): value.strip() for name, _, value in pairs}


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a connection for librdkafka. The first token is fetched, if any; raises as `Tokens`."""
    made = _with_tokens(settings, "oauth_cb")
    if "oauth_cb" in made:
        # librdkafka tells no reason, and takes 10 s for it.
        made["oauth_cb"]()
    return made


def kafka_python_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a connection for kafka-python, which fetches tokens when it logs in."""
    made = python_settings(_with_tokens(settings, TOKEN_PROVIDER))
    if TOKEN_PROVIDER in made:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        AbstractTokenProvider.register(Tokens)
    return made


def _with_tokens(settings: Mapping[str, str], name: str) -> dict[str, Any]:
    if settings.get(MECHANISM) not in (TOKENS, AWS_TOKENS):
        return dict(settings)
    others = {key: value for key, value in settings.items() if key not in (*OF_TOKENS, "https.ca.pem")}
    return {**others, MECHANISM: TOKENS, name: Tokens(settings)}


class _NoRedirect(HTTPRedirectHandler):
    """A redirect is an error: the secret would go along."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _issued(settings: Mapping[str, str]) -> tuple[str, float]:
    """A token by the grant ``client_credentials`` (RFC 6749, 4.4), and when it expires."""
    issuer = f"the issuer of tokens {urlsplit(settings[ENDPOINT]).hostname}"
    basic = b64encode(f"{settings[CLIENT_ID]}:{settings[CLIENT_SECRET]}".encode()).decode()
    form = {"grant_type": "client_credentials", **({"scope": settings[SCOPE]} if SCOPE in settings else {})}
    headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
    trusted = ssl.create_default_context(cafile=settings.get(ISSUER_CA), cadata=settings.get("https.ca.pem"))
    opener = build_opener(HTTPSHandler(context=trusted), _NoRedirect)
    asked = time.time()
    try:
        request = Request(settings[ENDPOINT], urlencode(form).encode(), headers)  # noqa: S310 - checked: http or https
        with opener.open(request, timeout=_SECONDS) as answer:
            said = json.load(answer)
        return str(said["access_token"]), asked + float(said.get("expires_in", _LIFE_SECONDS))
    except HTTPError as error:
        error.close()  # It holds the connection.
        if error.code == _TOO_MANY or error.code >= _SERVER_ERRORS:
            raise ConnectionError(f"{issuer} answers HTTP {error.code}") from None
        raise SourceAuthenticationError(
            f"{issuer} refuses the client (HTTP {error.code}). A retry does not help. Correct the connection."
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise SourceAuthenticationError(f"{issuer}: its certificate was refused ({reason}).") from None
        raise ConnectionError(f"{issuer} does not answer: {reason}") from None
    except (ValueError, KeyError, TypeError):
        raise SourceAuthenticationError(f"{issuer} answers without a token. Correct {ENDPOINT}.") from None


def _signed_by_aws(settings: Mapping[str, str]) -> tuple[str, float]:
    """A token of AWS's signer, by the credentials that AWS's own rules find, and when it expires."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    from botocore.exceptions import BotoCoreError, ClientError

    named = _REGION.search(settings[SERVERS])
    region = named[1] if named else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        raise ConfigurationError(f"{AWS_TOKENS}: no broker's name tells its region: set AWS_REGION.")
    try:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except (BotoCoreError, ClientError) as error:
        raise ConnectionError(f"AWS's signer gives no token: {one_line(error)}") from None
    except AttributeError:  # of None, in place of credentials
        raise ConnectionError("AWS's signer gives no token: it found no credentials of AWS") from None
    return token, expires_ms / 1000
