"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

LONGEST_NAME = 36
"""Maximum number of characters of a name per line, which leaves room for its value."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show_json(value: Any) -> None:
    """Print strict JSON; values without a JSON form become strings."""
    from dask_tiled.model.mark import json_value

    click.echo(json.dumps(json_value(value), indent=2, allow_nan=False))


def show(*parts: RenderableType) -> None:
    """Print rich renderables, at the width of the terminal; in a pipe, at their own width."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(markup=False, highlight=False, emoji=False, width=None if known else 1 << 16)
    with console.capture() as capture:
        for k, part in enumerate(parts):
            console.print(*[""] * (k > 0), part, sep="\n")
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def section(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Build a titled table of names and values; control characters are escaped."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from dask_tiled.errors import printable

    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    table.add_column(style="cyan", max_width=LONGEST_NAME, overflow="fold")
    table.add_column(overflow="fold")
    for name, value in rows:
        inner, indent = printable(name.lstrip()), len(name) - len(name.lstrip())
        table.add_row(Padding(Text(inner), (0, 0, 0, indent)), Text(printable(value)))
    return table


def columns(heads: Mapping[str, int | None], rows: Iterable[Sequence[str]]) -> Table:
    """Build a table from headings, with their largest widths, and rows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for head, width in heads.items():
        table.add_column(head, max_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def tree_rows(tree: Mapping[str, Any], depth: int = 0) -> Iterable[tuple[str, str]]:
    """List nested mappings as rows, with names indented by depth."""
    for key, value in tree.items():
        name = "  " * depth + str(key)
        if isinstance(value, Mapping):
            yield name, ""
            yield from tree_rows(value, depth + 1)
        else:
            yield name, " ".join(str(value).split())
