"""Records that a target refused are bad for that reason, and what is said of refused rows shows no value."""

from typing import Any

import pytest

from epochline import PostgresTable
from epochline.protocol.refused import RefusedRow, by_partition, in_words
from epochline.spark.transaction import _REFUSED_COLUMN
from tests.unit.flows import COLUMNS, flow, records

REFUSED = by_partition([("t", 0, 101, "people: check few"), ("t", 0, 101, "another"), ("t", 1, 100, "elsewhere")])
PEOPLE = PostgresTable(table="people", columns=COLUMNS)
VALUES = [b'{"id": 1}', b'{"id": 2}', b"{poison", b'{"id": 4}']


def test_a_refused_record_is_in_the_quarantine_with_its_first_reason_and_in_no_sink() -> None:
    """INV-9: also where other records of the batch are bad for reasons of their own."""
    done = flow(PEOPLE, refused=REFUSED).process(records(*VALUES))

    assert done.rows["people"].column("id").to_pylist() == [1, 4]
    found: dict[Any, Any] = dict(
        zip(done.quarantine["offset"].to_pylist(), done.quarantine["reason"].to_pylist(), strict=True)
    )
    assert found[101] == "people: check few"
    assert sorted(found) == [101, 102]
    counts = done.counts["t", 0]
    assert (counts.received, counts.passed, counts.quarantined) == (4, 2, 2)


def test_many_refused_rows_are_said_by_the_first_five_once_each() -> None:
    rows = [
        RefusedRow(sink="people", said="check few", reason="secret", place=("t", 0, offset))
        for offset in (9, 1, 1, 2, 3, 4, 5, 6)
    ]
    row = RefusedRow(sink="sums", said="a sum would not fit", reason="secret", place=None, row="{}")

    assert in_words(rows[:2]) == "t-0 offset 1 for people: check few; t-0 offset 9 for people: check few"
    assert in_words(rows).endswith("t-0 offset 5 for people: check few; and 2 more")
    assert in_words([row]) == "a row for sums: a sum would not fit"
    assert "secret" not in in_words([*rows, row])


@pytest.mark.parametrize(
    ("context", "line", "column"),
    [
        ('COPY stg_p_e4_a1, line 3, column at: "canary, line 9"', "3", "at"),
        ("COPY stg_p_e4_a1, Zeile 3, Spalte at: »canary«", "3", "at"),
        ("COPY stg_p_e4_a1, ligne 12, colonne at : « canary »", "12", "at"),
        ('COPY stg_p_e4_a1, строка 3: "canary"', "3", None),
    ],
)
def test_the_place_of_a_refused_value_is_found_in_any_language(context: str, line: str, column: str | None) -> None:
    """A database may have another ``lc_messages``, which only a superuser may change for a session."""
    found = _REFUSED_COLUMN.match(context)

    assert found is not None
    assert (found["line"], found["column"]) == (line, column)
