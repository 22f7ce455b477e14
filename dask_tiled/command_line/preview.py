"""``dask-tiled preview``: a picture of files."""

from __future__ import annotations

from typing import Any

import click

from dask_tiled.command_line.opening import OPENING, Opening, files, opened, with_options
from dask_tiled.command_line.values import PATH


@click.command(cls=Opening)
@files
@click.option(
    "--output", "-o", "target", required=True, type=PATH, help="Where to: .png, .svg, .pdf."
)
@click.option("--frames", type=int, help="Read so many frames at most, at equal distances.")
@with_options(OPENING)
def preview(files: tuple[str, ...], target: str, frames: int | None, **options: Any) -> None:
    """Draw mean frame, virtual detectors and scan, or planes of a volume, with axes and units.

    Of a large file a sample of frames is read, and the picture says how many.
    """
    arr = opened(files, options)
    from dask_tiled import show

    show(arr, target, frames=frames)
    click.echo(target)
