"""``dask-tiled verify``: comparison of an export with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from dask_tiled.command_line.opening import (
    OPENING,
    OpeningCommand,
    files,
    opened,
    opened_all,
    with_options,
)
from dask_tiled.command_line.values import PATH


@click.command(cls=OpeningCommand)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option("--all", "every", is_flag=True, help="Compare all datasets of the file.")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
@with_options(OPENING)
def verify(
    files: tuple[str, ...], target: str, *, every: bool, progress: bool | None, **options: Any
) -> None:
    """Compare an output of `convert` with the file, bit by bit.

    Pass the same options for opening as to `convert`. The exit code is 1 if they differ.
    """
    from dask_tiled.converting.convert import verify_file

    if every:
        datasets = opened_all(files, options)
        verify_file(target, datasets, progress=progress)
        show_compared(target, datasets)
        return
    arr = opened(files, options)
    verify_file(target, arr, progress=progress)
    click.echo(f"{target}: {compared(arr)}")


def show_compared(target: str, datasets: Mapping[str, Any]) -> None:
    """Print for each dataset what was compared."""
    from dask_tiled.export.zarr.group import node_names

    for name, node in node_names(datasets).items():
        click.echo(f"{target}/{node}: {compared(datasets[name])}")


def compared(arr: Any) -> str:
    """Return what a comparison without differences compared, as text."""
    from dask_tiled.errors import format_bytes

    pixels, desc = f"all {format_bytes(arr.nbytes)} of pixels compared", arr.description
    missing = 0 if desc is None else desc.layout.count_missing()
    if desc is not None and (left := desc.layout.selection.ignored()):
        pixels += f"; {left} frames of the file are not shown"
    if desc is None or not missing:
        return f"equal to the file, bit for bit; {pixels}"
    count, fill = math.prod(desc.nav_shape), desc.conversion.fill_value
    there = f"{count - missing} of {count} frames are equal to the file, bit for bit"
    return f"{there}; {missing} are missing in it, and {fill} in both; {pixels}"
