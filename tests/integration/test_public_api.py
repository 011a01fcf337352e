"""What semantic versioning covers, as `docs/data/public_api.txt` lists it: a change of it is seen in the diff.

``EPOCHLINE_WRITE_PUBLIC_API=1 .venv/bin/pytest -n 0 tests/integration/test_public_api.py`` writes the file.
"""

import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import epochline
from epochline import cli, errors
from epochline.protocol.epoch import Epoch
from tests.commands import Call
from tests.databases import query

ROOT = Path(__file__).parents[2]
LISTED = ROOT / "docs" / "data" / "public_api.txt"
WRITE = "EPOCHLINE_WRITE_PUBLIC_API"
IMPORTED = re.compile(r"^ *from (epochline\.[\w.]+) import ([\w, ]+)$", re.MULTILINE)
VIEWS = """
    SELECT table_name, string_agg(column_name, ' ' ORDER BY ordinal_position) FROM information_schema.columns
    JOIN information_schema.views USING (table_schema, table_name) WHERE table_schema = 'epochline' GROUP BY 1 ORDER BY 1
"""
QUARANTINED = """
    INSERT INTO epochline.quarantined_record (pipeline, generation, epoch_id, topic, topic_id, partition, "offset", value,
    reason) VALUES ('people', 1, 1, 'people', 'id', 0, 3, 'x', 'no JSON')
"""
COMMANDS = (
    "validate", "migrate", "plan people", "lag people", "list", "ledger people", "ledger people --epoch 1",
    "quarantine people", "doctor", "abort people 1 --reason enough --yes", "actions people",
)  # fmt: skip


def names() -> Iterator[str]:
    """The names of the package, and those of its modules that an example on a page imports."""
    yield from (f"epochline.{name}" for name in epochline.__all__)
    for page in (ROOT / "docs").glob("*.md"):
        for module, imported in IMPORTED.findall(page.read_text()):
            for name in imported.split(", "):
                assert hasattr(import_module(module), name), f"{page.name}: {module}.{name}"
                yield f"{module}.{name}"


def keys(answer: Any, above: str = "") -> Iterator[str]:
    """The keys of an answer and of the objects in its lists; those of an object in an object may be data."""
    for one in answer if isinstance(answer, list) else [answer]:
        for key, value in one.items() if isinstance(one, dict) else ():
            yield above + key
            if isinstance(value, list):
                yield from keys(value, f"{above}{key}[].")


def public(call: Call, dsn: str) -> Iterator[str]:
    yield from (f"name\t{name}" for name in sorted({*names()}))
    yield from (f"view\t{view}\t{columns}" for view, columns in query(dsn, VIEWS))
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EpochlineError)
    ]
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    others = {"InternalError": cli.INTERNAL_ERROR, "Interrupted": cli.INTERRUPTED}
    yield from (f"exit code\t{name}\t{code}" for name, code in sorted({**codes, **others}.items()))
    for command in COMMANDS:
        yield f"json\t{command}\t{' '.join(dict.fromkeys(keys(json.loads(call(*command.split(), '--json')[1]))))}"


def test_what_semantic_versioning_covers_is_what_the_file_lists(planned: Epoch, call: Call, postgres_dsn: str) -> None:
    """U7: views show heads and epochs. A release with a line that is gone or shorter is a major one."""
    query(postgres_dsn, QUARANTINED)

    found = list(public(call, postgres_dsn))

    if os.environ.get(WRITE):
        LISTED.write_text("\n".join(found) + "\n")
    assert found == LISTED.read_text().splitlines()
