"""The elements of a page of HTML, for tests that look at its markup without a browser."""

from html.parser import HTMLParser


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
