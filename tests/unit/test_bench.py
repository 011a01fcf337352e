"""What benches write: charts that say what their tables say, and ratios beside the stored ones."""

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import footprint
from bench.chart import SECTION, ratios, with_chart
from bench.kinds import short
from bench.quick import RATIOS, RECIPE, STATEFUL, STORED, compared
from bench.report import write_section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
SECTIONS = {match[1]: match[2] for match in SECTION.finditer(PAGE.read_text())}
TABLE = "| who | time, ratio to a | seconds |\n|---|---:|---:|\n| a & b | 1.00 | 2.5 |\n| c | 3.25 | 8.1 |"


def _parts(svg: str) -> Iterator[ElementTree.Element]:
    return ElementTree.fromstring(svg).iter()  # noqa: S314 - of our own


@pytest.mark.parametrize("bench", SECTIONS)
def test_every_chart_of_the_page_is_drawn_from_the_table_beside_it(bench: str, tmp_path: Path) -> None:
    section = SECTIONS[bench]

    assert with_chart(tmp_path / "page.md", bench, section) == section

    for drawn in tmp_path.glob("charts/*"):
        assert (PAGE.parent / "charts" / drawn.name).read_text() == drawn.read_text()


def test_every_chart_belongs_to_a_table_of_the_page() -> None:
    assert {f"bench.{path.stem}" for path in (PAGE.parent / "charts").iterdir()} <= set(SECTIONS)


def test_the_readme_has_the_ratios_of_the_page() -> None:
    [readme] = [match[2] for match in SECTION.finditer((ROOT / "README.md").read_text())]

    assert readme == short(SECTIONS["bench.kinds"])


def test_the_page_has_the_price_of_exactly_once_and_what_an_outbox_holds() -> None:
    """N8, N9: each ratio is to the same sinks without the ledger."""
    section = SECTIONS["bench.price"]

    ratio = dict(re.findall(r"^\| (\w[\w ]+ once, [\w ]+) \| ([\d.]+) \|", section, re.MULTILINE))
    for sinks in ("a table", "a table and a topic"):
        assert ratio[f"at least once, {sinks}"] == "1.00"
        assert float(ratio[f"exactly once, {sinks}"]) > 1
    assert re.search(r"the outbox holds \d+ bytes per record; afterwards it is empty", section)


def test_the_table_of_memory_is_made_of_what_was_measured() -> None:
    """B2: nobody has edited the page, and ten million records take no more memory than a million."""
    stored = json.loads(footprint.STORED.read_text())
    [section] = [one[2] for one in SECTION.finditer((ROOT / "docs" / "memory.md").read_text())]

    assert section.strip() == footprint.rendered(stored)
    for where in (footprint.DRIVER, footprint.SERVER):
        worker = {
            one["records"]: one[footprint.LARGEST]
            for one in stored["peaks"]
            if (one["where"], one["bytes"]) == (where, 100)
        }
        assert worker[10_000_000] < 1.2 * worker[1_000_000]


def test_a_bench_writes_its_table_and_the_chart_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench.x begins -->\nold\n<!-- bench.x ends -->\nafter\n")

    for _ in range(2):
        write_section(page, "bench.x", TABLE)

    expected = f"{TABLE}\n\n![time, ratio to a](charts/x.svg)"
    assert page.read_text() == f"before\n<!-- bench.x begins -->\n{expected}\n<!-- bench.x ends -->\nafter\n"
    texts = [one.text for one in _parts((tmp_path / "charts" / "x.svg").read_text()) if one.text and one.text.strip()]
    assert texts == ["time, ratio to a", "a & b", "1", "c", "3.25"]


def test_the_chart_of_several_ratios_is_that_of_the_whole_epoch() -> None:
    table = "| keys | seal, ratio | whole epoch, ratio |\n|---|---:|---:|\n| 10 | 1.50 | 2.50 |"

    assert ratios(table) == ("whole epoch, ratio", [("10", 2.5)])
    assert ratios("| keys | seconds |\n|---|---|\n| 10 | 1.5 |") is None


@pytest.mark.parametrize(
    ("ratio", "better", "now", "said"),
    [
        (STATEFUL, "less", 2.0, "as before (+0%)"), (STATEFUL, "less", 2.6, "WORSE (-23%)"),
        (STATEFUL, "less", 2.4, "as before (-17%)"), (STATEFUL, "less", 1.5, "better (+33%)"),
        (RECIPE, "more", 2.5, "better (+25%)"), (RECIPE, "more", 1.7, "as before (-15%)"),
        (RECIPE, "more", 1.5, "WORSE (-25%)"),
    ],
)  # fmt: skip
def test_a_ratio_that_became_worse_by_a_fifth_is_marked_and_a_missing_one_is_shown(
    ratio: str, better: str, now: float, said: str
) -> None:
    assert f"| {ratio} | {better} | 2.00 | {now:.2f} | {said} |" in compared({ratio: 2.0}, {ratio: now})
    assert compared({ratio: 2.0}, {}).count("- |") >= len(RATIOS)


def test_only_known_ratios_are_stored() -> None:
    assert set(json.loads(STORED.read_text())) <= set(RATIOS)


def test_the_readers_that_a_bench_compares_with_are_of_pysparks_version() -> None:
    ivy = ROOT / "bench" / "ivy"
    found = re.findall(r'name="(spark-(?:sql-kafka-0-10|avro)_[\d.]+)" rev="([\d.]+)"', (ivy / "spark.xml").read_text())

    assert [rev for _, rev in found] == [version("pyspark")] * 2
    for name, rev in found:
        assert f"{name}-{rev}.jar" in (ivy / "spark.sha256").read_text()
