"""A hook of mkdocs: the site has the pages outside of docs/ too, and the links of a checkout lead to its pages."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "include/epochline_examples/README.md",
             "plugins/README.md", "tests/README.md")  # fmt: skip
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
SOURCE = "https://github.com/epochline/epochline/{}/main/{}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that GitHub gives them."""
    config.mdx_configs["toc"] = {"slugify": anchor}
    return config


def anchor(heading: str, _: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def place_on_site(path: str) -> str | None:
    """Where the site has a page or picture of the repository; None for a file that it does not have."""
    if path == "docs/README.md":
        return "contents.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return {"README.md": "index.md"}.get(path, path) if path in ELSEWHERE else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    for path in ("docs/README.md", *ELSEWHERE):
        files.append(File.generated(config, str(place_on_site(path)), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn a link of the checkout into the site's; a file that is no page is shown at GitHub. A dead link stays."""
    here = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()

    def on_site(link: re.Match[str]) -> str:
        if ":" in link[0]:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[0]))
        if (ROOT / target).is_dir():
            return SOURCE.format("tree", target)
        if not (ROOT / target).exists():
            return link[0]
        place = place_on_site(target)
        if place is None:
            return SOURCE.format("blob", target)
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri))

    return LINK.sub(on_site, markdown)
