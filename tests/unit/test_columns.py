"""Column types by PostgreSQL's names: aliases, modifiers, refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochline.declare.columns import BY_TEXT, SUPPORTED, Carrier, parse_type


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("int", "integer"), ("int2", "smallint"), ("int4", "integer"), ("int8", "bigint"), ("BIGINT", "bigint"),
        ("bool", "boolean"), ("float4", "real"), ("float", "double precision"), ("float8", "double precision"),
        ("varchar", "character varying"), ("varchar(20)", "character varying(20)"), ("string", "text"),
        ("character varying ( 20 )", "character varying(20)"), ("timestamp", "timestamp without time zone"),
        ("timestamptz", "timestamp with time zone"), ("time", "time without time zone"), ("decimal", "numeric"),
        ("decimal(12, 2)", "numeric(12,2)"), ("numeric(5)", "numeric(5,0)"), ("  Text ", "text"),
        ("int[]", "integer[]"), ("text [] [3]", "text[]"), ("varchar(3)[]", "character varying(3)[]"),
        ("timestamptz(0)", "timestamp(0) with time zone"), ("timestamp(6)", "timestamp(6) without time zone"),
        ("time (3) without time zone", "time(3) without time zone"), ("timetz", "time with time zone"),
        ("interval(2)", "interval(2)"), ("char", "character(1)"), ("char(3)", "character(3)"), ("bit", "bit(1)"),
        ("varbit", "bit varying"), ("varbit(5)", "bit varying(5)"), ("timestamp(3)[]", "timestamp(3) without time zone[]"),
    ],
)  # fmt: skip
def test_an_alias_is_read_as_the_type_it_stands_for(spelled: str, canonical: str) -> None:
    assert str(parse_type(spelled)) == canonical


@pytest.mark.parametrize("name", [one for one in (*SUPPORTED, *BY_TEXT) if one not in ("bit", "character")])
def test_a_canonical_name_is_read_as_itself(name: str) -> None:
    assert str(parse_type(name)) == name
    assert parse_type(str(parse_type(name))) == parse_type(name)


@given(precision=st.integers(1, 76), scale=st.none() | st.integers(0, 76))
def test_a_number_keeps_precision_and_scale(precision: int, scale: int | None) -> None:
    text = f"numeric({precision})" if scale is None else f"numeric({precision}, {scale})"

    kind = parse_type(text)

    carrier = Carrier.BINARY if precision <= 38 else Carrier.TEXT
    assert (kind.precision, kind.scale, kind.carrier) == (precision, scale, carrier)
    assert parse_type(str(kind)).precision == precision


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cash", "unsupported type 'cash'; use one of: bigint"), ("int[", "unsupported type"),
        ("money(3)", "takes no modifier"), ("timestamptz(7)", "at most 6 digits"), ("bit(0)", "at least 1"),
        ("timestamptz with time zone", "unsupported type"), ("text; drop table x", "unsupported type"), ("", "unsupported type"),
        ("integer(4)", "integer takes no modifier"), ("text(4)", "text takes no modifier"),
        ("varchar(4,2)", "takes no modifier"), ("citext(3)", "takes no modifier"),
        ("numeric(0)", "precision must be between 1 and 76"), ("numeric(77)", "precision must be between 1 and 76"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_carried_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_type(text)


@given(text=st.text(max_size=30))
def test_any_other_text_is_refused_and_never_half_read(text: str) -> None:
    try:
        kind = parse_type(text)
    except ValueError:
        return
    assert (kind.element or kind).name in {*SUPPORTED, *BY_TEXT}
    assert parse_type(str(kind)) == parse_type(str(parse_type(str(kind))))
