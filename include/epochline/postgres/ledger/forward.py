"""What every migration is: the SQL script of the same name, which is run and never undone."""

from collections.abc import Callable
from pathlib import Path

from alembic import op
from sqlalchemy import Connection

Direction = Callable[[], None]


def migration(file: str) -> tuple[str, str | None, Direction, Direction]:
    """The revision, the one before it, upgrade and downgrade of ``0002_name.py``, as Alembic reads them."""
    script = Path(file).with_suffix(".sql")
    number = int(script.name.partition("_")[0])

    def upgrade() -> None:
        execute_script(op.get_bind(), script.read_text())

    return f"{number:04}", f"{number - 1:04}" if number > 1 else None, upgrade, _refuse


def execute_script(connection: Connection, script: str) -> None:
    """Run several statements in the transaction of the connection. The driver looks for no placeholders in them."""
    connection.exec_driver_sql(script, execution_options={"no_parameters": True})


def _refuse() -> None:
    """Refuse: a downgrade would delete history. A ledger that is newer than the code is refused as well."""
    raise RuntimeError("the ledger's migrations go forward only; restore a backup instead")
