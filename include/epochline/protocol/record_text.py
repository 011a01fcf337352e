"""The bytes of a record as text for people: every character is printable, and none ends a line."""

from collections.abc import Iterator

_HEX_BYTES = 16


def on_one_line(content: bytes) -> str:
    """Bytes as UTF-8. Bytes that are no text, line ends and other characters that do not print are escaped."""
    text = content.decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def hex_lines(content: bytes) -> Iterator[str]:
    """Bytes in hex, 16 a line, each line with its offset and with the bytes that are ASCII."""
    for start in range(0, len(content), _HEX_BYTES):
        line = content[start : start + _HEX_BYTES]
        seen = "".join(chr(one) if 32 <= one < 127 else "." for one in line)
        yield f"{start:08x}  {line.hex(' '):<{3 * _HEX_BYTES - 1}}  {seen}"
