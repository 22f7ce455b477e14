"""Tables of text for terminals and notebooks; control characters are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from dask_tiled.errors import printable


def html_table(rows: Iterable[Sequence[str]]) -> str:
    """Write rows as HTML; the first text of each row is its heading."""
    left = 'style="text-align: left; vertical-align: top"'
    lines = []
    for name, *texts in rows:
        cells = "".join(f"<td {left}>{html.escape(printable(text))}</td>" for text in texts)
        lines.append(f"<tr><th {left}>{html.escape(printable(name))}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as text with aligned columns."""
    rows = [[*map(printable, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)
