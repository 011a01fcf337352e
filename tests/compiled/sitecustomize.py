"""Python imports this first in every process whose PYTHONPATH names its folder: it writes down what is compiled.

Each line of the file that ``EPOCHLINE_COMPILED`` names is the number of a process and a source file that it compiled in
order to import it, because there was no bytecode of it.
"""

import os
import sys

FILE = os.environ.get("EPOCHLINE_COMPILED", "")


def _write_down(event: str, arguments: tuple[object, ...]) -> None:
    # Importers are frozen modules; what else compiles has text of its own, or looks at a file without running it.
    caller = sys._getframe().f_back if event == "compile" else None
    if caller is not None and caller.f_code.co_filename.startswith("<frozen "):
        name = arguments[1].decode() if isinstance(arguments[1], bytes) else arguments[1]
        handle = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, f"{os.getpid()} {name}\n".encode())
        os.close(handle)


if FILE:
    sys.addaudithook(_write_down)
