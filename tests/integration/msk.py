"""What Amazon MSK has in front of a broker: TLS, and a login by a request that is signed for one region.

The signature is checked as AWS documents it (Signature Version 4), with the secret key of the test. After the
login, requests go to a real broker. Its answers name this address in place of the broker's.
"""

import base64
import hashlib
import hmac
import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from io import BufferedIOBase
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import parse_qsl, quote, urlsplit

from epochline.local.home import LOOPBACK
from tests.integration.secure_kafka import Certificates, make_certificates

KEY_ID, SECRET_KEY = "AKIDOFTHETESTS", "canary/secret+key+of+aws"
_HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 17, 18, 36
_REFUSED = 58
_HEAD = struct.Struct(">hhi")


def region_of(token: str) -> str | None:
    """The region for which a token was signed with the secret key; None if it was not."""
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    fields = dict(parse_qsl(url.query))
    signature = fields.pop("X-Amz-Signature")
    fields.pop("User-Agent")  # which the signer adds to what it signed
    key_id, *scope = fields["X-Amz-Credential"].split("/")
    query = "&".join(f"{quote(name, safe='')}={quote(fields[name], safe='')}" for name in sorted(fields))
    request = "\n".join(["GET", "/", query, f"host:{url.netloc}", "", "host", hashlib.sha256(b"").hexdigest()])
    hashed = hashlib.sha256(request.encode()).hexdigest()
    signed = "\n".join(["AWS4-HMAC-SHA256", fields["X-Amz-Date"], "/".join(scope), hashed])
    key = reduce(lambda key, part: hmac.digest(key, part.encode(), "sha256"), scope, f"AWS4{SECRET_KEY}".encode())
    good = hmac.compare_digest(signature, hmac.new(key, signed.encode(), "sha256").hexdigest())
    wanted = (KEY_ID, "kafka-cluster:Connect", f"kafka.{scope[1]}.amazonaws.com")
    return scope[1] if good and (key_id, fields["Action"], url.netloc) == wanted else None


class Msk(ThreadingTCPServer):
    """The front of a broker on loopback."""

    daemon_threads = True

    def __init__(self, broker: int, certificates: Certificates) -> None:
        super().__init__((LOOPBACK, 0), _Client)
        self.broker, self.certificates = broker, certificates
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(certificates.path("broker-both"))
        self.regions: list[str | None] = []
        """Of each login; None if it was refused."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def connection(self) -> dict[str, str]:
        """The extra of a connection to it."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self.port}", "security.protocol": "SASL_SSL",
            "sasl.mechanism": "AWS_MSK_IAM", "ssl.ca.location": self.certificates.path("ca"),
        }  # fmt: skip


class _Client(StreamRequestHandler):
    server: Msk

    def setup(self) -> None:
        self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def handle(self) -> None:
        with suppress(OSError):  # of a client that goes away
            self._answer()

    def _answer(self) -> None:
        its, ours = (LOOPBACK.encode() + struct.pack(">i", port) for port in (self.server.broker, self.server.port))
        logged_in = False
        with socket.create_connection((LOOPBACK, self.server.broker)) as broker, broker.makefile("rb") as answers:
            while request := _frame(self.rfile):
                api, version, correlation = _HEAD.unpack_from(request)
                answer = None
                if api == _HANDSHAKE:
                    answer = struct.pack(">ihih11s", correlation, 0, 1, 11, b"OAUTHBEARER")
                elif api == _AUTHENTICATE:
                    [token] = re.findall(rb"auth=Bearer ([^\x01]+)\x01", request)
                    self.server.regions.append(region_of(token.decode()))
                    logged_in = self.server.regions[-1] is not None
                    answer = _said(version, correlation, 0 if logged_in else _REFUSED)
                elif logged_in or api == _API_VERSIONS:
                    broker.sendall(struct.pack(">i", len(request)) + request)
                    answer = _frame(answers).replace(its, ours)
                if answer is None:
                    return
                self.wfile.write(struct.pack(">i", len(answer)) + answer)


def _said(version: int, correlation: int, error: int) -> bytes:
    """The answer to a token, without a message and without a life of the session."""
    if version > 1:
        return struct.pack(">ibhbbqb", correlation, 0, error, 0, 1, 0, 0)
    return struct.pack(">ihhi", correlation, error, -1, 0) + bytes(8 * version)


def _frame(stream: BufferedIOBase) -> bytes:
    size = stream.read(4)
    return stream.read(int.from_bytes(size)) if len(size) == 4 else b""


@contextmanager
def msk(broker: int, folder: Path) -> Iterator[Msk]:
    """The front of the broker that listens on a port, as long as the block."""
    front = Msk(broker, make_certificates(folder))
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield front
    finally:
        front.shutdown()
        front.server_close()
