"""Ports for the servers of tests, which other processes of the same run do not choose."""

import json
import os
import random

from epochline.local.home import DEFAULTS, Home, is_free

_FIRST, _BEYOND = 20_000, 32_000  # below those from which the kernel makes outgoing connections
_given: set[int] = set()


def free_port() -> int:
    """A port that is free now, and still is when its server, which a test stops, comes back.

    A server binds it only seconds later, so each process of a parallel run has a range of its own to choose from, and
    gives no port twice.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers
    share = (_BEYOND - _FIRST) // workers
    tried = random.sample(range(_FIRST + number * share, _FIRST + (number + 1) * share), 200)
    port = next(port for port in tried if port not in {*DEFAULTS.values(), *_given} and is_free(port))
    _given.add(port)
    return port


def choose_ports(home: Home) -> None:
    """Choose the ports of a stack before it starts; by itself it would take the usual ones where they are free."""
    home.create()
    home.ports.write_text(json.dumps({name: free_port() for name in DEFAULTS}))
