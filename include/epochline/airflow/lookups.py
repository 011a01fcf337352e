"""Looks connections up where Airflow keeps them, for a command: reads an id per line, writes a line of JSON for each.

It runs in a process of its own. Importing Airflow takes two seconds, opens Airflow's database, and redirects the logs
of the process to standard output.
"""

import json
import os
import sys
from typing import Any

_METADATA = "airflow.secrets.metastore.MetastoreBackend"


def answer(connection_id: str) -> dict[str, Any]:
    """The connection's fields and, as ``where``, what has it; or, as ``asked``, the places that do not have it.

    Asks the workers' secrets back end, or else the secrets back end, and then Airflow's metadata database. A back end
    that fails is passed over as Airflow passes over it, and named; one that denies access is not passed over.
    """
    asked: list[str] = []
    failed: list[str] = []
    try:
        from airflow.configuration import ensure_secrets_loaded

        back_ends = ensure_secrets_loaded(default_backends=[_METADATA])
    except Exception as error:
        return {"asked": [f"Airflow (its configuration does not load: {type(error).__name__})"]}
    for back_end in back_ends:
        name = f"{type(back_end).__module__}.{type(back_end).__qualname__}"
        place = "Airflow's metadata database" if name == _METADATA else f"Airflow's secrets back end {name}"
        try:
            connection = back_end.get_connection(conn_id=connection_id)
            if connection is not None:
                return {"where": ", after ".join([place, *failed]), **_fields(connection)}
            asked.append(place)
        except Exception as error:  # A back end may raise anything, and its text may hold a secret.
            failed.append(f"{place} (failed: {type(error).__name__})")
            asked.append(failed[-1])
            if type(error).__name__ == "AirflowSecretsBackendAccessDenied":
                break
    return {"asked": asked}


def _fields(connection: Any) -> dict[str, Any]:
    texts = {name: getattr(connection, name) or "" for name in ("conn_type", "host", "schema", "login", "password")}
    return {**texts, "port": connection.port, "extra": connection.extra_dejson}


def main() -> None:
    """Answer until standard input ends."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        # Airflow prints warnings and logs.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        for line in sys.stdin:
            print(json.dumps(answer(line.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main()
