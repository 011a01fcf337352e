"""Why a record was refused, without the record: reasons reach logs, errors and readers who may not see values."""

from __future__ import annotations

import json
import traceback

import pytest

from epochline.columns import SUPPORTED
from epochline.errors import BadRecordError
from epochline.parsing import Json, Regex, Text
from epochline.table import PostgresTable
from tests.unit.test_arrow_flow import flow, records

CANARY = "4111-1111-canary"
BAD = {
    "text": json.dumps(CANARY),
    "digits": "41111111111111111111111111111111111111111111111111111111111111111111111111111111111111e400",
    "object": json.dumps({CANARY: [CANARY]}),
    "surrogate": f'"{CANARY}\\ud800"',
    "not JSON": f"{{{CANARY}",
}
SECRETS = (CANARY, "41111111", "4111-1111")


@pytest.mark.parametrize("kind", [kind for kind in SUPPORTED if kind != "text"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_reason_names_the_column_and_never_shows_the_value(kind: str, bad: str) -> None:
    """SEC-5, F28: quarantined with a reason, or failing with it; neither holds a piece of the record."""
    sink = PostgresTable(table="t", columns={"c": kind})
    value = f'{{"c": {bad}}}'.encode()

    kept = flow(sink, parse=Json(columns={"c": kind})).process(records(value)).quarantine

    reasons = kept.column("reason").to_pylist()
    assert not [reason for reason in reasons for secret in SECRETS if secret in reason]
    if reasons:
        with pytest.raises(BadRecordError) as told:
            flow(sink, parse=Json(columns={"c": kind}), bad_records="fail").process(records(value))
        assert "t-0 offset 100" in str(told.value)
        # A task's log shows the whole chain of an error.
        shown = "".join(traceback.format_exception(told.value))
        assert not [secret for secret in SECRETS if secret in shown]


@pytest.mark.parametrize("kind", ["integer", "numeric(5,2)", "date", "interval", "uuid", "inet", "jsonb", "boolean"])
def test_the_same_holds_for_texts_that_a_regex_took_apart(kind: str) -> None:
    sink = PostgresTable(table="t", columns={"c": kind})
    parse = Regex(pattern="(?P<c>.*)", columns={"c": kind})

    kept = flow(sink, parse=parse).process(records(CANARY.encode(), b"\xff" + CANARY.encode())).quarantine

    assert kept.num_rows == 2
    assert not [reason for reason in kept.column("reason").to_pylist() if "canary" in reason]


def test_bytes_that_are_no_text_are_not_shown() -> None:
    sink = PostgresTable(table="t", columns={"value": "text"})

    kept = flow(sink, parse=Text()).process(records(CANARY.encode() + b"\xff\x00")).quarantine

    assert kept.num_rows == 1
    assert "canary" not in kept.column("reason").to_pylist()[0]
