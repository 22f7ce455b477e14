"""``dask-tiled thumbnail``: a small picture of a file."""

from __future__ import annotations

from typing import Any

import click

from dask_tiled.command_line.failures import Failure, check_complete
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
@click.argument("target", type=PATH, metavar="OUT.png")
@click.option(
    "--size",
    type=click.IntRange(8, 4096),
    default=256,
    show_default=True,
    help="Maximum number of pixels along an axis.",
)
@with_options((*CALIBRATING, *OPENING))
def thumbnail(files: tuple[str, ...], target: str, size: int, **options: Any) -> None:
    """Write a small picture of a file as PNG, without axes.

    It is the mean of some frames, the middle of a volume, or an image. Few bytes are read.
    """
    arr = opened(files, options)
    from dask_tiled.cataloguing.thumbnails import thumbnail as made
    from dask_tiled.cataloguing.thumbnails import write_png

    pixels = made(arr, size)
    if pixels is None:
        raise Failure(f"{files[0]}: not an image, but lines")
    click.echo(write_png(target, pixels))
    check_complete(files[0], arr.description, options["doubts"])
