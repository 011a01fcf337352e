"""docs/reference.md is what the code generates, and its examples are valid."""

import pytest

import epochline
from epochline import KafkaSource
from epochline.errors import DeclarationError
from tests import reference


def test_the_page_is_what_the_code_generates() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make reference`"


@pytest.mark.parametrize("name", reference.EXAMPLES)
def test_an_example_is_a_valid_declaration(name: str) -> None:
    made = reference.construct(reference.EXAMPLES[name])

    made = made if isinstance(made, list) else [made]
    assert all(type(one).__name__ == name for one in made)


@pytest.mark.parametrize("name", reference.EXAMPLES)
def test_every_field_has_a_meaning(name: str) -> None:
    kind = getattr(epochline, name)

    assert [field for field in reference.fields(kind) if field not in reference.documented(kind)] == []


def test_every_public_declaration_is_on_the_page() -> None:
    assert {*epochline.__all__} - {"epoch_dag"} == {*reference.EXAMPLES}


def test_the_error_of_a_declaration_ends_with_its_reference() -> None:
    with pytest.raises(DeclarationError, match=r"docs/reference\.md#kafkasource$"):
        KafkaSource()
