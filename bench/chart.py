"""A chart of each table of ratios, drawn from the table's own text, so that chart and table cannot differ."""

import re
from pathlib import Path
from xml.sax.saxutils import escape

SECTION = re.compile(r"<!-- (bench\.\w+) begins -->\n(.*?)\n<!-- \1 ends -->", re.DOTALL)
_LINK = re.compile(r"\n*!\[[^\n]*\]\(charts/[^\n]*\)\s*$")
_WIDTH, _ROW, _LABELS, _VALUES, _TOP = 760, 28, 300, 60, 44


def with_chart(page: Path, bench: str, table: str) -> str:
    """The text of a bench's section: its table, and a link to the chart beside the page, which is drawn.

    A section without a table of ratios has no chart.
    """
    table = _LINK.sub("", table)
    found = ratios(table)
    if found is None:
        return table
    what, rows = found
    chart = page.parent / "charts" / f"{bench.removeprefix('bench.')}.svg"
    chart.parent.mkdir(exist_ok=True)
    chart.write_text(bars(what, rows))
    return f"{table}\n\n![{what}](charts/{chart.name})"


def ratios(table: str) -> tuple[str, list[tuple[str, float]]] | None:
    """The heading of the first column of ratios, and its value by row; that of the whole epoch if there are several."""
    lines = table.splitlines()
    for at, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        headings = cells(line)
        columns = [number for number, text in enumerate(headings) if "ratio" in text]
        if not columns:
            continue
        column = next((number for number in columns if "whole" in headings[number]), columns[0])
        rows = []
        for row in lines[at + 2 :]:
            if not row.startswith("|"):
                break
            texts = cells(row)
            rows.append((texts[0], float(texts[column])))
        return headings[column], rows
    return None


def bars(what: str, rows: list[tuple[str, float]]) -> str:
    """An SVG with a bar per row and a line at 1."""
    most = max(1.0, *(value for _, value in rows))
    scale = (_WIDTH - _LABELS - _VALUES) / most
    height = _TOP + _ROW * len(rows) + 12
    one = _LABELS + scale
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" fill="#222222">{escape(what)}</text>',
    ]
    for number, (label, value) in enumerate(rows):
        y = _TOP + _ROW * number
        end = _LABELS + value * scale
        drawn += [
            f'<text x="{_LABELS - 8}" y="{y + 16}" text-anchor="end" fill="#222222">{escape(label)}</text>',
            f'<rect x="{_LABELS}" y="{y + 3}" width="{value * scale:.1f}" height="{_ROW - 10}" fill="#2f6f9f"/>',
            f'<text x="{end + 6:.1f}" y="{y + 16}" fill="#222222">{value:g}</text>',
        ]
    drawn += [
        f'<line x1="{one:.1f}" y1="{_TOP - 6}" x2="{one:.1f}" y2="{height - 8}" stroke="#c0392b"'
        ' stroke-dasharray="4 3"/>',
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
