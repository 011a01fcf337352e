"""A TCP proxy on loopback that breaks connections where a test says: at a COMMIT, after its answer, one way, slowly."""

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

# PostgreSQL's messages: type, length with itself, text, NUL. They cannot stand inside a message of this protocol
# that the tests send, whose values hold no such bytes.
CLIENT_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
SERVER_COMMIT = b"C\x00\x00\x00\x0bCOMMIT\x00"


class Cut(enum.Enum):
    """What is lost when a connection breaks around a COMMIT."""

    BEFORE = CLIENT_COMMIT
    """The client's COMMIT does not arrive: the server rolls back."""
    AFTER = SERVER_COMMIT
    """The server's answer does not arrive: the transaction is committed, and the client cannot know."""


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter

    def end(self, *, reset: bool) -> None:
        for writer in (self.client, self.server):
            if not reset:
                writer.close()
                continue
            # Closing with unsent data thrown away is a TCP reset.
            with contextlib.suppress(OSError):
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Forwards to one server. Every switch holds for connections that are open and for those that come."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {port}", daemon=True)
        self.connections: set[_Connection] = set()
        self._cut: tuple[Cut, int] | None = None
        self.commits = 0
        self.cuts = 0
        self.delay = 0.0
        """Seconds that each piece of data is held up, in both directions."""
        self._silent: set[Cut] = set()
        """The directions in which nothing is forwarded."""
        self._refusing = False
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut_at(self, where: Cut, number: int = 1) -> None:
        """Break the connection around the ``number``-th COMMIT from now on, once."""
        self._cut = (where, number)

    def cut(self) -> None:
        self._run(self._end_all(reset=False))

    def reset(self) -> None:
        self._run(self._end_all(reset=True))

    def silence(self, side: Literal["server", "client"]) -> None:
        """Cut one way: what this side sends stays here until `heal`."""
        self._silent.add(Cut.AFTER if side == "server" else Cut.BEFORE)

    def unplug(self) -> None:
        self._refusing = True
        self.cut()

    def heal(self) -> None:
        self._refusing = False
        self.delay = 0.0
        self._cut = None
        self._silent.clear()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _close(self) -> None:
        self._server.close()
        await self._end_all(reset=True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _end_all(self, *, reset: bool) -> None:
        for connection in list(self.connections):
            connection.end(reset=reset)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, to_server)
        self.connections.add(connection)
        try:
            await asyncio.gather(
                self._forward(reader, to_server, connection, Cut.BEFORE),
                self._forward(from_server, writer, connection, Cut.AFTER),
            )
        except (OSError, asyncio.IncompleteReadError):
            connection.end(reset=False)
        finally:
            self.connections.discard(connection)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, connection: _Connection, where: Cut
    ) -> None:
        tail = b""
        while data := await source.read(1 << 16):
            if self.delay:
                await asyncio.sleep(self.delay)
            while where in self._silent:
                await asyncio.sleep(0.02)
            seen = tail + data
            found = seen.count(where.value)
            tail = b"" if found else seen[-(len(where.value) - 1) :]
            if found and where is Cut.AFTER:
                self.commits += found
            if found and self._is_cut_here(where, found):
                self.cuts += 1
                connection.end(reset=False)
                return
            sink.write(data)
            await sink.drain()
        sink.close()

    def _is_cut_here(self, where: Cut, found: int) -> bool:
        if self._cut is None or self._cut[0] is not where:
            return False
        left = self._cut[1] - found
        self._cut = (where, left) if left > 0 else None
        return left <= 0
