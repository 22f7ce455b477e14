"""``dask-tiled verify``: comparison of an export with its source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from dask_tiled.command_line.opening import OPENING, Opening, files, opened, with_options
from dask_tiled.command_line.values import PATH

if TYPE_CHECKING:
    from dask_tiled.array.tiled_array import TiledArray


@click.command(cls=Opening)
@files
@click.argument("target", type=PATH, metavar="OUT")
@click.option(
    "--progress/--no-progress", default=None, help="Show a progress bar; by default in a terminal."
)
@with_options(OPENING)
def verify(files: tuple[str, ...], target: str, *, progress: bool | None, **options: Any) -> None:
    """Compare an output of `convert` with the file, bit by bit.

    Pass the same options for opening as to `convert`. The exit code is 1 if they differ.
    """
    arr = opened(files, options)
    from dask_tiled.converting.convert import verify_file

    verify_file(target, arr, progress=progress)
    click.echo(f"{target}: {compared(arr)}")


def compared(arr: TiledArray) -> str:
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
