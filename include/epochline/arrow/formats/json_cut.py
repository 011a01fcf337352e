"""Cut the texts of some members out of JSON objects, and skip the others, with msgspec's parser."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_NULL = msgspec.Raw(b"null")

Steps = tuple[str, ...]


class Cutter:
    """Cuts members out of objects. ``paths`` leads to each by its steps, from the outermost object inwards.

    msgspec refuses what is not JSON, also in a member that it skips; in addition it refuses half a surrogate pair.
    Of members with the same name the last one counts, as in `epochline.arrow.cast.jsontext.read_json`.
    Raises ``ValueError`` if it cannot cut all members in one pass: one lies within another, or msgspec takes no such
    name, because there is a quotation mark, a backslash or a control character in it.
    """

    def __init__(self, paths: Sequence[Steps]) -> None:
        self._places: list[list[str]] = []
        tree: dict[str, Any] = {}
        for steps in paths:
            within = tree
            for step in steps[:-1]:
                within = within.setdefault(step, {})
                if within is _NULL:
                    raise ValueError(steps)
            if within.setdefault(steps[-1], _NULL) is not _NULL:
                raise ValueError(steps)
        model, fields = _model(tree)
        for steps in paths:
            place, names = [], fields
            for step in steps:
                field, names = names[step]
                place.append(field)
            self._places.append(place)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(model)

    def lines(self, data: Any, count: int) -> list[list[bytes]] | None:
        """The members' texts, each a list of ``count``; ``null`` where a member or an object around it is missing.

        ``data`` is a buffer of objects with line feeds between them. Returns None if msgspec refuses one, or if there
        are not ``count``.
        """
        try:
            documents = self._decoder.decode_lines(data)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if len(documents) != count:
            return None
        return [_texts(documents, place) for place in self._places]

    def one(self, text: str) -> list[bytes] | None:
        """The members' texts in one object; None if msgspec refuses it."""
        columns = self.lines(text, 1)
        return None if columns is None else [texts[0] for texts in columns]


def without_spaces(text: bytes) -> str:
    """A JSON text without the spaces between its parts; all else stays as it is."""
    return msgspec.json.format(text, indent=-1).decode()


_SPACES = r"[\[{,:][ \t\r\n]|[ \t\r\n][\]},:]"
"""Found in every JSON text with spaces between its parts, and in some texts in quotes."""


def all_without_spaces(texts: list[bytes]) -> list[str]:
    """As `without_spaces` for each text of a `Cutter`, which has no spaces around it."""
    whole = pa.array([b"\n".join(texts)], pa.large_binary())
    has_spaces = pc.match_substring_regex(whole, _SPACES)[0].as_py()
    return list(map(without_spaces if has_spaces else bytes.decode, texts))


def _texts(documents: list[Any], place: list[str]) -> list[bytes]:
    *outer, last = place
    if not outer:
        return [bytes(getattr(document, last)) for document in documents]
    for field in outer:
        documents = [None if document is None else getattr(document, field) for document in documents]
    return [b"null" if document is None else bytes(getattr(document, last)) for document in documents]


def _model(tree: Mapping[str, Any]) -> tuple[type, dict[str, tuple[str, Any]]]:
    """A class that msgspec fills, and by each member's name its field and the names within it."""
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, tuple[str, Any]] = {}
    for at, (name, inner) in enumerate(tree.items()):
        if inner is _NULL:
            fields.append((f"m{at}", msgspec.Raw, _NULL))
            names[name] = f"m{at}", {}
        else:
            model, within = _model(inner)
            fields.append((f"m{at}", model | None, None))
            names[name] = f"m{at}", within
    renamed = {field: name for name, (field, _) in names.items()}
    return msgspec.defstruct("Object", fields, rename=renamed, gc=False), names
