"""A record that fails its epoch is named by its place; no value of it reaches a log (SEC-5)."""

import json
import traceback
from itertools import product

import pytest

from epochline.declare.columns import SUPPORTED
from epochline.declare.parsers import Json, Regex
from epochline.declare.table import PostgresTable
from epochline.errors import BadRecordError
from tests.unit.flows import flow, records

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
    """F28: also half a surrogate in a document, which has to be a bad record and no crash of the parser."""
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
    assert CANARY not in refusal(kind, value, Regex(pattern="(?P<c>.*)", columns={"c": kind}))
