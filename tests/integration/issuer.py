"""An issuer of OIDC tokens on loopback: for a client's id and secret it signs tokens that live some seconds."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.secure_kafka import Certificates, make_certificates

CLIENT, SECRET = "epochline-client", "canary-8Tq/secret+of=client"
AUDIENCE, SCOPE = "kafka-of-the-tests", "records"


class Issuer:
    """What the issuer gives, and what it gave."""

    def __init__(self, certificates: Certificates, seconds: int) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.certificates, self.seconds = certificates, seconds
        self.given: list[str] = []
        self.answer: int | None = None
        """A status that is answered in place of a token."""
        self.refused = 0
        """How often that was."""
        keys, tokens = (ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) for _ in range(2))
        trusted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trusted.load_cert_chain(certificates.path("broker-both"))
        tokens.socket = trusted.wrap_socket(tokens.socket, server_side=True)
        self.servers = (keys, tokens)
        self.keys = f"http://127.0.0.1:{keys.server_port}/keys"
        self.endpoint = f"https://127.0.0.1:{tokens.server_port}/token"

    def token(self) -> str:
        """Sign a token."""
        now = int(time.time())
        claims = {
            "iss": "tests", "sub": CLIENT, "aud": AUDIENCE, "scope": SCOPE, "iat": now, "jti": str(len(self.given)),
            "exp": now + 1 + self.seconds,  # whole seconds: never less than is said
        }  # fmt: skip
        self.given.append(jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": "one"}))
        return self.given[-1]

    def extra(self, **changes: str) -> dict[str, str]:
        """What a connection's extra says of its login."""
        return {
            "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.endpoint, "sasl.oauthbearer.scope": SCOPE,
            "https.ca.location": self.certificates.path("ca"), **changes,
        }  # fmt: skip

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(issuer._key.public_key()))
                self._say(200, {"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                known = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if issuer.answer is not None:
                    issuer.refused += 1
                    self._say(issuer.answer, {})
                elif self.headers["Authorization"] != f"Basic {known}" or form != {
                    "grant_type": ["client_credentials"], "scope": [SCOPE],
                }:  # fmt: skip
                    self._say(401, {"error": "invalid_client"})
                else:
                    self._say(200, {"access_token": issuer.token(), "expires_in": issuer.seconds})

            def _say(self, status: int, what: object) -> None:
                self.send_response(status)
                if status in (302, 307):
                    self.send_header("Location", issuer.keys)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(what).encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def issuing(folder: Path, seconds: int) -> Iterator[Issuer]:
    """An issuer that lives as long as the block; its certificate is of an authority of its own."""
    issuer = Issuer(make_certificates(folder), seconds)
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in issuer.servers]
    for thread in threads:
        thread.start()
    try:
        yield issuer
    finally:
        for server in issuer.servers:
            server.shutdown()
            server.server_close()
