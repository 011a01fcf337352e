"""What bounds may be declared, and what a verdict says of an epoch's numbers, without a server."""

from decimal import Decimal
from typing import Any

import pytest

from epochline import Bounds, KafkaSource, KafkaTopic, Measure, Pipeline, PostgresTable, Text
from epochline.errors import DeclarationError
from epochline.protocol.bounds import Found, Measured, Overwritten, Value, judge, misfit, plain
from epochline.protocol.epoch import Approval, Counts, EpochKind

COUNTED = "SELECT count(*) FROM staged"


def declared(bounds: Bounds, *sinks: Any) -> Pipeline:
    table = PostgresTable(table="t", columns={"value": "text"})
    return Pipeline(name="p", source=KafkaSource(topics="p"), parse=Text(), sinks=sinks or [table], bounds=bounds)


def measured(value: Value, *earlier: str, kind: EpochKind = EpochKind.REGULAR, **limits: Any) -> list[str]:
    bounds = Bounds(measures=(Measure(name="sum", sql=COUNTED, **limits),))
    found = Found(
        kind=kind, counts=Counts(), rows=0, measured=Measured(values={"sum": value}),
        earlier={"sum": [*map(Decimal, earlier)]},
    )  # fmt: skip
    return list(judge(bounds, found).outside)


def outside(bounds: Bounds, *, kind: EpochKind = EpochKind.REGULAR, rows: int = 0, **counts: int) -> list[str]:
    return list(judge(bounds, Found(kind=kind, counts=Counts(**counts), rows=rows)).outside)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (9, ["9 rows staged, at least 10 expected"]),
        (10, []),
        (2000, []),
        (2001, ["2,001 rows staged, at most 2,000 expected"]),
    ],
)
def test_an_epoch_is_inside_up_to_its_limits_and_the_difference_is_said_in_numbers(rows: int, said: list[str]) -> None:
    assert outside(Bounds(least_rows=10, most_rows=2000), rows=rows) == said


@pytest.mark.parametrize(("bad", "inside"), [(28, True), (29, True), (30, False)])
def test_a_share_is_compared_exactly(bad: int, inside: bool) -> None:
    """In floating point, 29 of 100 would be above 0.29."""
    said = outside(Bounds(most_quarantined=0.29, most_skipped=1), read=100, passed=100 - bad, quarantined=bad)

    assert said == ([] if inside else ["30 of 100 records quarantined (30.00%), at most 29 % expected"])


def test_an_epoch_without_records_has_no_share() -> None:
    assert outside(Bounds(most_quarantined=0, most_skipped=0)) == []


def test_keys_that_a_target_has_already_are_counted_for_each_upsert_target() -> None:
    keys = {"a": Overwritten(keys=10, there=3), "b": Overwritten(keys=10, there=1), "c": Overwritten(keys=0, there=0)}
    found = Found(kind=EpochKind.REGULAR, counts=Counts(), rows=20, measured=Measured(overwritten=keys))

    verdict = judge(Bounds(most_overwritten=0.2), found)

    assert verdict.outside == ("3 of 10 keys of a overwritten (30.00%), at most 20 % expected",)
    assert verdict.approval is Approval.AWAITED


@pytest.mark.parametrize("kind", [EpochKind.REQUEUE, EpochKind.IDLE])
def test_what_is_no_share_of_the_stream_may_have_any_size(kind: EpochKind) -> None:
    assert outside(Bounds(least_rows=10), kind=kind, rows=1) == []
    assert outside(Bounds(most_rows=10), kind=kind, rows=11) == ["11 rows staged, at most 10 expected"]
    assert measured(Decimal(1), "100", kind=kind, change=0.1) == []
    assert measured(Decimal(1), "100", kind=kind, change=0.1, least=2) == ["sum is 1, at least 2 expected"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal("0.5"), []),
        (Decimal("0.49"), ["sum is 0.49, at least 0.5 expected"]),
        (Decimal("1234567.50"), ["sum is 1,234,567.5, at most 1,000,000 expected"]),
        (Decimal("Infinity"), ["sum is Infinity, at most 1,000,000 expected"]),
        (Decimal("-Infinity"), ["sum is -Infinity, at least 0.5 expected"]),
        (Decimal("NaN"), ["sum is NaN"]),
        (None, ["sum is NULL"]),
    ],
)
def test_a_number_is_inside_its_limits_or_it_is_said_by_how_much_not(value: Value, said: list[str]) -> None:
    assert measured(value, least=0.5, most=1_000_000) == said


def test_a_condition_is_inside_if_it_is_true() -> None:
    assert measured(True) == []
    assert measured(False) == ["sum is false"]
    assert measured(None) == ["sum is NULL"]


@pytest.mark.parametrize(
    ("value", "earlier", "said"),
    [
        ("150", ["100", "100", "1000"], []),
        ("50", ["100"], []),
        ("151", ["100", "90", "110"], ["sum is 151, the median of the last 3 epochs 100 (+51.0%), at most ±50 % expected"]),
        ("49", ["100"], ["sum is 49, the last epoch 100 (-51.0%), at most ±50 % expected"]),
        ("100", ["-100"], ["sum is 100, the last epoch -100 (+200.0%), at most ±50 % expected"]),
        ("0", ["0", "0"], []),
        ("1", ["0"], ["sum is 1, the last epoch 0, at most ±50 % expected"]),
        ("Infinity", ["100"], ["sum is Infinity, the last epoch 100, at most ±50 % expected"]),
        ("100", ["100", "200"], []),
    ],
)  # fmt: skip
def test_a_change_is_measured_from_the_median_of_earlier_epochs(
    value: str, earlier: list[str], said: list[str]
) -> None:
    assert measured(Decimal(value), *earlier, change=0.5) == said


def test_without_an_earlier_epoch_the_declaration_says_what_an_epoch_is() -> None:
    assert measured(Decimal(7), change=0.5) == ["sum is 7, and no earlier epoch has a number to compare it with"]
    assert measured(Decimal(7), change=0.5, first="inside") == []
    infinite = ["sum is Infinity, and no earlier epoch has a number to compare it with"]
    assert measured(Decimal("Infinity"), change=0.5, first="inside") == infinite, "no epoch would ever be compared"


def test_only_finite_numbers_are_kept_for_later_epochs_and_under_a_key_that_changes_with_the_sql() -> None:
    measures = [Measure(name=name, sql=COUNTED, most=1) for name in ("number", "nan", "null")]
    values = {"number": Decimal("0.1"), "nan": Decimal("NaN"), "null": None, "condition": True}
    condition = Measure(name="condition", sql="SELECT true FROM staged")
    found = Found(kind=EpochKind.REGULAR, counts=Counts(), rows=0, measured=Measured(values=values))

    verdict = judge(Bounds(measures=(*measures, condition)), found)

    assert verdict.numbers == {measures[0].key: Decimal("0.1")}
    assert len({one.key for one in (*measures, Measure(name="number", sql=f"{COUNTED} ", most=1))}) == 4


def test_limits_are_for_numbers_alone() -> None:
    bare, limited = Measure(name="m", sql=COUNTED), Measure(name="m", sql=COUNTED, most=1)

    assert misfit(bare, True) is misfit(limited, Decimal(1)) is misfit(bare, None) is misfit(limited, None) is None
    assert "a condition, and limits are for numbers" in str(misfit(limited, True))
    assert "a number without limits" in str(misfit(bare, Decimal(1)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"), ("0.00", "0"), ("-0", "-0"), ("100", "100"), ("1E+3", "1,000"), ("-1234.5600", "-1,234.56"),
        ("1E-20", "1.000000e-20"), ("1E+400", "1.000000e+400"), ("0.000001", "0.000001"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(value: str, text: str) -> None:
    assert plain(Decimal(value)) == text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "name at least one bound"),
        ({"least_rows": 2, "most_rows": 1}, "least_rows: is above most_rows"),
        ({"most_quarantined": 1.5}, "most_quarantined"),
        ({"most_skipped": float("nan")}, "most_skipped"),
        ({"least_rows": -1}, "least_rows"),
        ({"outside": "warn", "least_rows": 1}, "outside"),
        ({"least_rows": 1, "statement_timeout": 0}, "statement_timeout"),
        ({"most_row": 1}, "did you mean most_rows"),
    ],
)
def test_a_declaration_that_bounds_nothing_or_everything_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Bounds(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\nb"}, "one line"),
        ({"sql": "SELECT 1"}, "name the staged rows"),
        ({"sql": "SELECT unstaged FROM t"}, "name the staged rows"),
        ({"sql": "SELECT '\0' FROM staged"}, "name the staged rows"),
        ({"least": 2, "most": 1}, "least: is above most"),
        ({"change": -1}, "change"),
        ({"most": float("inf")}, "most"),
        ({"change": 1, "epochs": 0}, "epochs"),
    ],
)
def test_a_measure_that_cannot_be_taken_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        Measure(**{"name": "m", "sql": COUNTED, **fields})


def test_measures_need_one_table_each_and_names_of_their_own() -> None:
    a, b = (PostgresTable(table=name, columns={"value": "text"}) for name in "ab")
    one = Measure(name="m", sql=COUNTED, most=1)

    assert declared(Bounds(measures=(one,))).bounds is not None
    with pytest.raises(DeclarationError, match="two have the name 'm'"):
        Bounds(measures=(one, one))
    with pytest.raises(DeclarationError, match="name one of a, b"):
        declared(Bounds(measures=(one,)), a, b)
    with pytest.raises(DeclarationError, match="'c' is no target"):
        declared(Bounds(measures=(Measure(name="m", sql=COUNTED, table="c", most=1),)), a, b)
    with pytest.raises(DeclarationError, match="name one of no table"):
        declared(Bounds(measures=(one,)), KafkaTopic(topic="out", value=Text()))
    with pytest.raises(DeclarationError, match="no target has mode 'upsert'"):
        declared(Bounds(most_overwritten=0.5))


def test_a_pipeline_whose_first_epoch_could_never_commit_is_refused() -> None:
    change = {"name": "m", "sql": COUNTED, "change": 0.5}

    with pytest.raises(DeclarationError, match="no first epoch could ever commit"):
        Bounds(outside="abort", measures=(Measure(**change),))
    assert Bounds(outside="abort", measures=(Measure(**change, first="inside"),))


def test_the_ledger_keeps_bounds_exactly_and_the_hash_of_a_declaration_without_them() -> None:
    bounds = Bounds(most_quarantined=0.1, measures=(Measure(name="m", sql=COUNTED, most="0.30", change=2),))

    assert Pipeline.from_stored(declared(bounds).stored()).bounds == bounds
    assert "bounds" not in Pipeline(
        name="p", source=KafkaSource(topics="p"), parse=Text(),
        sinks=[PostgresTable(table="t", columns={"value": "text"})],
    ).stored()  # fmt: skip
