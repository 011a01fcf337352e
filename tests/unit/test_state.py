"""Keyed state as it is declared, and when it is what the last epoch left (C1, C9, S14)."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from epochline import Pipeline, PostgresTable, StateTable
from epochline.declare.state import StateDigest, StateStanding, check_state
from epochline.errors import DeclarationError, StateError
from epochline.protocol.changes import Effect
from tests import declaring
from tests.declaring import effects, read_back

COLUMNS = {"client": "text", "requests": "bigint"}
TRANSFORM = "pipelines.access_log:per_client"


def state(**fields: Any) -> StateTable:
    return StateTable(**({"table": "counted", "key": "client", "columns": COLUMNS, "keys": TRANSFORM} | fields))


def pipeline(**fields: Any) -> Pipeline:
    out = PostgresTable(table="out", columns=COLUMNS, aggregated=True)
    return declaring.pipeline(out, **{"transform": TRANSFORM, "state": [state()]} | fields)


JSON = {"client": "text", "seen": "json"}


@pytest.mark.parametrize(
    ("declare", "fields", "said"),
    [
        (state, {"columns": None}, "columns: a state table needs its columns declared"),
        (state, {"key": ()}, "key: mode 'upsert' needs it"),
        (state, {"key": "nobody"}, "key: nobody is not among the columns"),
        (state, {"order_by": "requests"}, "order_by: not supported for state"),
        (state, {"select": TRANSFORM}, "select: not supported for state"),
        (state, {"tombstone": "ignore"}, "tombstone: not supported for state"),
        (state, {"mode": "append"}, "mode"),
        (state, {"columns": JSON}, "seen is json, whose values PostgreSQL cannot compare; use jsonb"),
        (state, {"keys": "nowhere:keys"}, "there is no module 'nowhere'"),
        (state, {"table": "epochline.counted"}, "is reserved"),
        (pipeline, {"transform": None}, "state: only a transform reads and writes state; name one"),
        (pipeline, {"state": [state(keys=None)]}, "state.counted.key: the record has no client"),
        (pipeline, {"state": [state(table="out")]}, "a table is named twice, or is also a state table"),
        (pipeline, {"state": [state(), state()]}, "a table is named twice"),
    ],
)
def test_wrong_state_names_its_field_and_the_fix(
    declare: Callable[..., object], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        declare(**fields)


def test_a_stored_declaration_with_state_is_read_back_equal_and_one_without_is_stored_as_before() -> None:
    read_back(pipeline())
    assert "state" not in json.loads(pipeline(state=()).stored())
    assert pipeline().declaration_hash != pipeline(state=()).declaration_hash


def test_state_that_is_declared_later_needs_its_table_and_another_key_is_refused() -> None:
    assert effects(pipeline(state=()), pipeline()) == {"state.counted": Effect.MIGRATION}
    assert effects(pipeline(), pipeline(state=[state(key="requests")])) == {"state.counted.key": Effect.REFUSED}


LEFT = StateStanding(now=StateDigest(keys=3, digest=7), left=StateDigest(keys=3, digest=7), left_by=5)


def test_state_that_the_last_epoch_left_is_accepted() -> None:
    check_state("p", {"counted": LEFT}, 5)
    for last in (None, 9):  # declared after epoch 9
        check_state("p", {"counted": StateStanding(now=StateDigest(keys=0, digest=0))}, last)


@pytest.mark.parametrize(
    ("standing", "last", "said"),
    [
        (replace(LEFT, now=None, followed=False), 5, "a table that Epochline did not create"),
        (replace(LEFT, now=None), 5, "triggers of state counted are missing or disabled.*epochline migrate"),
        (replace(LEFT, now=StateDigest(keys=3, digest=8)), 5, "the same number of keys with other values"),
        (replace(LEFT, now=StateDigest(keys=4, digest=7)), 5, "epoch 5 left 3 keys, it now holds 4 keys"),
        (LEFT, 6, "is of epoch 5, but the last committed epoch is 6"),
        (LEFT, None, "is of epoch 5, but the last committed epoch is None"),
        (StateStanding(now=StateDigest(keys=1, digest=1)), None, "no epoch has written any.*Empty it"),
        (StateStanding(now=StateDigest(keys=1, digest=1)), 4, "epochline accept-state p"),
    ],
)
def test_state_that_is_anything_else_is_refused_with_the_reason(
    standing: StateStanding, last: int | None, said: str
) -> None:
    with pytest.raises(StateError, match=said) as raised:
        check_state("p", {"counted": standing}, last)
    assert "Nothing was changed" in str(raised.value)
