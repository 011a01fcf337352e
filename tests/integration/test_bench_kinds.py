"""The check of `bench.kinds` compares every row of a table with what was produced."""

from contextlib import closing
from typing import Any

import psycopg2
import pytest

from bench.kind_list import KINDS, Kind
from bench.kinds import check

PRODUCED = 20_000
ONE = "ctid = (SELECT ctid FROM held LIMIT 1)"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_missing_a_doubled_and_a_changed_row_are_found(kind: Kind, postgres_dsn: str) -> None:
    with closing(psycopg2.connect(postgres_dsn)) as session, session.cursor() as cursor:

        def sql(statement: str) -> list[tuple[Any, ...]]:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

        for target in kind.targets:
            numbers = f"SELECT n FROM generate_series(0, {PRODUCED - 1}) n"
            sql(f"CREATE TEMP TABLE held AS WITH produced AS ({numbers}) {target.rows}")
            check(sql, "held", target, PRODUCED)
            for harm in (
                f"DELETE FROM held WHERE {ONE}",
                f"INSERT INTO held SELECT * FROM held WHERE {ONE}",
                f"UPDATE held SET {list(target.columns)[-1]} = NULL WHERE {ONE}",
            ):
                sql(f"SAVEPOINT whole; {harm}")
                with pytest.raises(RuntimeError, match="number and digest of its rows"):
                    check(sql, "held", target, PRODUCED)
                sql("ROLLBACK TO whole")
            sql("DROP TABLE held")
