"""A bad record and a refused row are named by their place; no value of a record reaches a log."""

import json
import traceback
from itertools import product
from typing import Any

import pytest

from epochline import PostgresTable
from epochline.declare.columns import SUPPORTED
from epochline.declare.parsers import Json, Regex
from epochline.errors import BadRecordError
from epochline.protocol.refused import RefusedRow, by_partition, in_words
from epochline.spark.transaction import _REFUSED_COLUMN
from tests.unit.flows import COLUMNS, flow, records

CANARY = "4111-1111-canary"
BAD = {
    "text": json.dumps(CANARY),
    "digits": "4" * 90 + "e400",
    "object": json.dumps({CANARY: [CANARY]}),
    "surrogate": f'"{CANARY}\\ud800"',
    "not JSON": f"{{{CANARY}",
}
SECRETS = (CANARY, "4444", "4111")


def refusal(kind: str, value: bytes, parse: Json | Regex) -> str:
    """What a task's log shows of the failed attempt: the error and everything that it was made of."""
    sink = PostgresTable(table="t", columns={"c": kind})
    with pytest.raises(BadRecordError) as refused:
        flow(sink, bad_records="fail", parse=parse).process(records(value))
    return "".join(traceback.format_exception(refused.value))


TAKEN = {("text", "character varying"), ("digits", "numeric")}
TAKEN |= set(product(("text", "digits", "object"), ("json", "jsonb")))
CASES = [(bad, kind) for bad in BAD for kind in SUPPORTED if kind != "text" and (bad, kind) not in TAKEN]


@pytest.mark.parametrize(("bad", "kind"), CASES, ids=[f"{bad}-{kind}" for bad, kind in CASES])
def test_an_error_names_the_record_and_never_shows_its_value(bad: str, kind: str) -> None:
    """SEC-5, F28: also half a surrogate in a document, which has to be a bad record and no crash of the parser."""
    shown = refusal(kind, f'{{"c": {BAD[bad]}}}'.encode(), Json(columns={"c": kind}))

    assert "t-0 offset 100" in shown
    assert not [secret for secret in SECRETS if secret in shown.partition("BadRecordError:")[2]]
    assert CANARY not in shown


@pytest.mark.parametrize("value", [json.dumps(CANARY), json.dumps([CANARY]), json.dumps({"d": {CANARY: CANARY}})])
def test_the_same_holds_for_what_a_path_meets(value: str) -> None:
    shown = refusal("text", f'{{"c": {value}}}'.encode(), Json(columns={"c": "text"}, paths={"c": "$.c.d"}))

    assert "t-0 offset 100" in shown
    assert CANARY not in shown


@pytest.mark.parametrize("kind", ["integer", "numeric(5,2)", "date", "interval", "uuid", "inet", "jsonb", "boolean"])
@pytest.mark.parametrize("value", [CANARY.encode(), b"\xff" + CANARY.encode()], ids=["text", "no text"])
def test_the_same_holds_for_texts_that_a_regex_took_apart(kind: str, value: bytes) -> None:
    """SEC-5."""
    assert CANARY not in refusal(kind, value, Regex(pattern="(?P<c>.*)", columns={"c": kind}))


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
        ("COPY stg_p_e4_a1, line 3, column at", "3", "at"),
        ('JSON data, line 1: {"canary, line 9...\nCOPY stg_p_e4_a1, line 3, column at', "3", "at"),
        ('COPY stg_p_e4_a1, line 3: "\nCOPY canary, line 9, column at: "', "3", None),
    ],
)
def test_the_place_of_a_refused_value_is_found_in_any_language(context: str, line: str, column: str | None) -> None:
    """A database may have another ``lc_messages``, which only a superuser may change for a session.

    A binary COPY shows no value, and a document has a line of its own before.
    """
    found = _REFUSED_COLUMN.match(context)

    assert found is not None
    assert (found["line"], found["column"]) == (line, column)
