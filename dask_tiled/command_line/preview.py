"""``dask-tiled preview``: a picture of files."""

from __future__ import annotations

from typing import Any

import click

from dask_tiled.command_line.failures import check_complete
from dask_tiled.command_line.opening import (
    CALIBRATING,
    OPENING,
    OpeningCommand,
    files,
    opened,
    with_options,
)
from dask_tiled.command_line.values import PATH


@click.command(cls=OpeningCommand)
@files
@click.option(
    "--output", "-o", "target", required=True, type=PATH, help="File to write: .png, .svg or .pdf."
)
@click.option("--frames", type=int, help="Maximum number of frames to read, evenly spaced.")
@with_options((*CALIBRATING, *OPENING))
def preview(files: tuple[str, ...], target: str, frames: int | None, **options: Any) -> None:
    """Draw the mean frame, virtual detectors and the scan, or planes of a volume, with axes.

    Only a sample of the frames of a large file is read; the picture states their number.
    """
    arr = opened(files, options)
    from dask_tiled import show

    show(arr, target, frames=frames)
    click.echo(target)
    check_complete(files[0], arr.description, options["doubts"])
