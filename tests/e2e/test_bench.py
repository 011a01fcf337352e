"""The bench of the kinds runs: both contestants take the same records exactly once, and the page gets the ratios."""

import subprocess
import sys
from pathlib import Path

from bench.chart import SECTION, ratios
from bench.kinds import short

ROOT = Path(__file__).parents[2]
PLACE = "<!-- bench.kinds begins -->\n<!-- bench.kinds ends -->\n"


def test_the_bench_of_the_kinds_writes_its_table_into_both_pages(tmp_path: Path) -> None:
    page, second = tmp_path / "page.md", tmp_path / "second.md"
    for one in (page, second):
        one.write_text(PLACE)
    sizes = ["--records", "8000", "--rounds", "1", "--kinds", "deletes", "windows"]

    done = subprocess.run(
        [sys.executable, "-m", "bench.kinds", *sizes, "--report", str(page), "--short-report", str(second)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    [section], [table] = ([one[2] for one in SECTION.finditer(path.read_text())] for path in (page, second))
    found = ratios(section)
    assert found is not None
    assert [name for name, _ in found[1]] == [
        "typed columns, append", "upsert, 100,000 keys, a fifth deletes", "windowed count, 1,000 keys"
    ]  # fmt: skip
    assert all(ratio > 0 for _, ratio in found[1])
    assert table == short(section)
