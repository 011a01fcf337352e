"""A plugin of pytest: a real Chromium, in which tests look at pages and use them as a person does.

A page fails its test if the browser reports an error on it: a script that failed, or one that the page's
Content-Security-Policy refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, FrameLocator, Page

NARROW, WIDE = 360, 1280
"""Widths in CSS pixels: a small telephone's, and a picture's in the documents."""

_PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE_MS = 300_000
_NOTICED_FROM = ("serious", "critical")

needs_browser = pytest.mark.skipif(_PROGRAM is None, reason="no Chromium on this machine (Debian: chromium)")

Theme = Literal["dark", "light"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that makes the documents' pictures again."""
    parser.addoption("--write-pictures", metavar="FOLDER", help="write the pictures that tests take to this folder")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The machine's own Chromium, without a window.

    It ends with its module: while it runs, so does an event loop, beside which no other test could start its own.
    """
    # Imported here, because most runs need no browser.
    from playwright.sync_api import sync_playwright

    # Chromium cannot make its sandbox as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_PROGRAM, args=arguments)
        yield browser
        browser.close()


class Visit:
    """A page of Airflow that a logged-in user has open."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self.errors: list[str] = []
        page.on("console", self._noticed)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _noticed(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def open(self, path: str) -> None:
        """Go to a path of the API server, and wait for what it shows."""
        answer = self.page.goto(f"{self._url}/{path}")
        assert answer is not None, path
        assert answer.ok, (path, answer.status)

    @property
    def frame(self) -> FrameLocator:
        """The ledger's page within Airflow's own."""
        return self.page.frame_locator("iframe")

    def hindrances(self) -> list[str]:
        """What axe-core calls serious or critical in the ledger's page, as ``rule: first element``."""
        from axe_playwright_python.sync_playwright import Axe

        # Airflow's own page, if there is one, is around it.
        found: list[dict[str, Any]] = Axe().run(self.page.frames[-1]).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in _NOTICED_FROM]

    def overflows(self) -> bool:
        """Whether the page is wider than its window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@contextmanager
def visit(
    browser: Browser, url: str, token: str | None, *, theme: Theme = "dark", width: int = WIDE
) -> Iterator[Visit]:
    """Open a window of a user of Airflow; at the end, no page in it may have had an error.

    Args:
        browser: from the fixture ``chromium``.
        url: of the API server.
        token: what the user's login gave; None for nobody.
        theme: what the user's system prefers, which Airflow follows.
        width: of the window, in CSS pixels.
    """
    context: BrowserContext = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    context.set_default_timeout(_PATIENCE_MS)
    if token is not None:
        context.add_cookies([{"name": "_token", "value": token, "url": url}])
    try:
        one = Visit(context.new_page(), url)
        yield one
        assert one.errors == []
    finally:
        context.close()


@pytest.fixture
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Visit, str], None]:
    """Takes a picture of a window, for the documents if ``--write-pictures`` says so."""
    folder = Path(request.config.getoption("--write-pictures") or tmp_path)

    def take(seen: Visit, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # What is there may not be painted yet.
        seen.page.frames[-1].evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        content = seen.page.screenshot(path=folder / f"{name}.png", animations="disabled")
        assert len(content) > 10_000, "an empty page"

    return take
